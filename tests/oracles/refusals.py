"""Wrong calls, and the argument that their errors name."""


def assert_refused(calls):
    """Assert that each call of (call, argument) pairs raises a ValueError about this argument.

    An error names the argument in its fields, or in those of its reason; else by the first word of its sentence.
    """
    others = []
    for number, (call, argument) in enumerate(calls):
        try:
            call()
        except ValueError as error:
            reason = getattr(error, "reason", error)
            named = getattr(reason, "argument", str(reason).partition(" ")[0])
            if named != argument:
                others.append(f"{number}: {argument!r}, got {named!r}: {error}")
        else:
            others.append(f"{number}: {argument!r} is accepted")
    assert not others, "\n".join(others)
