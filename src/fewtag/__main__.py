"""`python -m fewtag` is `fewtag`."""

from fewtag.cli.main import main

if __name__ == "__main__":
    main()
