"""The command, and ``python -m torchrl_doctor``; `env` needs neither torch nor what imports it."""

import sys

NEEDED = ("torch", "torchrl", "tensordict")


def main(arguments=None):
    """Run `cli.main`, but for ``env``, which works where torch is missing."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:1] == ["env"]:
        from torchrl_doctor.machine import print_environment

        return print_environment(arguments[1:])
    try:
        from torchrl_doctor import cli
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            raise
        said = f"{sys.executable} has no {error.name}; install the doctor beside your pipeline"
        print(f"torchrl-doctor: {said}. torchrl-doctor env works without.", file=sys.stderr)
        return 2
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
