"""What firmware, kernel and udev leave behind at every boot of a node."""


def main() -> int:
    """Nothing yet."""
    return 0
