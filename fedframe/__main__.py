"""`python -m fedframe` is the command line, too: for whoever has not the environment's programs on the path."""

from fedframe.cli import main

if __name__ == "__main__":
    main()
