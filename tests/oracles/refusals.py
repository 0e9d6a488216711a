"""Wrong calls, and the argument that their errors name."""


def argument_of(error):
    """Name of the argument in an error's fields, of a client's error too; else the first word of the sentence."""
    reason = getattr(error, "reason", error)
    return getattr(reason, "argument", str(reason).partition(" ")[0])


def assert_refused(calls):
    """Assert that each call of (call, argument) pairs raises a ValueError about this argument."""
    others = []
    for number, (call, argument) in enumerate(calls):
        try:
            call()
        except ValueError as error:
            if argument_of(error) != argument:
                others.append(f"{number}: {argument!r}, got {argument_of(error)!r}: {error}")
        else:
            others.append(f"{number}: {argument!r} is accepted")
    assert not others, "\n".join(others)
