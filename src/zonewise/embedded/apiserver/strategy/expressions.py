"""Whether an expression in an object can be compiled at all."""

from __future__ import annotations


def condition_error(text: str) -> str:
    """Why an expression is not a valid match condition; empty if it is valid.

    One that uses ``authorizer`` is accepted, as by a real server, and fails when it is evaluated.
    """
    # Loading the language is slow, and most servers never get an expression.
    from zonewise.embedded.machinery.cel.match_conditions import AuthorizerUsed, compile_condition
    from zonewise.embedded.machinery.cel.syntax import CompileError

    try:
        compile_condition(text)
    except AuthorizerUsed:
        return ""
    except CompileError as error:
        return str(error)
    return ""
