"""`dlfp-edge compare`."""


def compare() -> None:
    """Placeholder."""
