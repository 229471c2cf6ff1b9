"""Switch fabric: one lossless class on Arista EOS, planned, pushed, verified and rolled back."""
