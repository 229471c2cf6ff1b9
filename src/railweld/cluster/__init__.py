"""The cluster stage: what kubeadm, containerd and the pod network get from the description."""
