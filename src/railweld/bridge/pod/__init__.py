"""What runs in a job's pods. Standard library only, and no syntax newer than Python 3.8."""
