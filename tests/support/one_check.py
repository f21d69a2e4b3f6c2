"""What one check of the doctor says."""

from torchrl_doctor import diagnose


def found(slug, **given):
    """Its state and evidence; None and an empty text where it says nothing."""
    report = diagnose(**given, only=slug, seconds=60)
    return next(((one.state, one.evidence) for one in report), (None, ""))
