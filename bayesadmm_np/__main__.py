"""`python -m bayesadmm_np` is the command `bayesadmm`."""

from .cli import main

if __name__ == "__main__":
    main()
