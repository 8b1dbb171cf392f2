"""Errors of the HTTP interface: a status, and a body in the form that OpenAI's or Anthropic's clients expect."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from banyan.runtime import errors
from banyan.runtime.errors import BanyanError

TOO_LONG = "context_length_exceeded"
"""The code of OpenAI's API for a prompt that is longer than the context."""
_LENGTHS = re.compile(r"(\d+) tokens; this model's maximum context length is (\d+)")
"""Matches the message of PromptTooLong.of."""

ANTHROPIC_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}

_STATUSES: dict[int, tuple[type[BanyanError], ...]] = {
    429: (errors.Overloaded, errors.ConstraintBusy),
    500: (errors.ConstraintBroke, errors.ConstraintCrashed),
    400: (
        *(errors.PromptTooLong, errors.ConstraintError, errors.BadProgram, errors.BadMessage, errors.Unsupported),
        *(errors.ToolError, errors.OutOfMemory, errors.Quarantined),
    ),
    504: (errors.DeadlineExceeded,),
    503: (errors.Cancelled, errors.RuntimeLost),
}
"""Status -> classes of errors. The first entry that matches decides; all other errors are 500. Clients send a request
again after any status of 500 or above, so a request that kills engines gets 400."""


class HTTPError(Exception):
    """The error that a client gets in place of a response. param: the path of the invalid field in the body, if there
    is one; a message that does not contain it gets it as a prefix, because many clients show only the message. details:
    the field `details` of Anthropic's error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        if param and not re.search(rf"(?<!\w){re.escape(param)}(?!\w)", message):
            message = f"{param}: {message}"
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.details = status, message, param, code, details

    def openai(self) -> dict[str, Any]:
        """The body as OpenAI writes it."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        if self.status == 429:
            kind = "rate_limit_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def anthropic(self) -> dict[str, Any]:
        """The body as Anthropic writes it."""
        kind = ANTHROPIC_KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")
        lengths = _LENGTHS.search(self.message) if self.code == TOO_LONG else None
        # clients of this API look for this text
        text = "prompt is too long: {} tokens > {} maximum".format(*lengths.groups()) if lengths else self.message
        error = {"type": kind, "message": text}
        return {"type": "error", "error": error if self.details is None else error | {"details": self.details}}


def http_error(error: BanyanError, field: str | None = None) -> HTTPError:
    """Convert an error of the runtime into the HTTPError for the client, with the status that fits its class. field:
    the field of the request's prompt, which the error names if the prompt is wrong. If the server is lost, stderr gets
    the reason, and the client does not."""
    status = next((status for status, classes in _STATUSES.items() if isinstance(error, classes)), 500)
    code = TOO_LONG if isinstance(error, errors.PromptTooLong) else error.code
    message = error.message.rpartition(f"{errors.EARLIER_OP}: ")[2]  # the earlier op is the Append of the prompt
    if type(error) in (errors.RuntimeLost, errors.ConnectFailed):  # their messages have the path of the server's socket
        _print_once(message)
        message = "the server is gone"
    is_of_prompt = code == TOO_LONG or (status == 400 and message != error.message)
    return HTTPError(status, message, param=field if is_of_prompt else None, code=code)


def any_http_error(error: Exception, work: str) -> HTTPError:
    """Convert any error into the HTTPError for the client. work: what failed, which stderr names if the error is one of
    this process."""
    match error:
        case HTTPError():
            return error
        case BanyanError():
            return http_error(error)
        case RecursionError():
            return HTTPError(400, "the body is nested too deeply")
    print(f"banyan: the {work} failed:", file=sys.stderr)
    traceback.print_exception(error, file=sys.stderr)
    return HTTPError(500, f"an error of the HTTP process: {type(error).__name__}")


@lru_cache(64)
def _print_once(message: str) -> None:
    print(f"banyan: a request over HTTP failed: {message}", file=sys.stderr, flush=True)
