"""The command, and ``python -m torchrl_doctor``; `env` needs neither torch nor what imports it."""

import sys


def main(arguments=None):
    """Run `cli.main`, but for ``env``, which works where torch is missing."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:1] == ["env"]:
        from torchrl_doctor.machine import print_environment

        return print_environment(arguments[1:])
    from torchrl_doctor import cli

    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
