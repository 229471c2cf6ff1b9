"""Measures what the GPUs and the fabric of a site give, and names the node or link that gives less.

`results` reads what nccl-tests prints, `limits` knows what the hardware could give, `schedule`
orders pairs so that no node waits, `judge` compares, `baseline` remembers, `launch` starts runs.
"""
