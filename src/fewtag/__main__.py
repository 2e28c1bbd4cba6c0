"""`python -m fewtag` is `fewtag`."""

from fewtag.apps.cli import main

if __name__ == "__main__":
    main()
