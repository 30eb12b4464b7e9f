"""In place of soundfile: SGLang's server imports it to transcribe speech, which no test has."""


def available_formats() -> dict[str, str]:
    """Return none: mistral-common asks for them as it is imported."""
    return {}
