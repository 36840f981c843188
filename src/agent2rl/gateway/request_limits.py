"""Restrict what a request may contain and ask of the provider.

Fields, tools and content types are allowed by name, so a field that a provider adds tomorrow is refused
until somebody has reviewed it. Add a field to the lists once you know what every server does with it. The
other checks only give a better reason: rerouting to another model or server, state stored at the provider,
options that cost more, and the provider's own tools, which would be a network connection that the sandbox
forbids. A forbidden field is refused whatever its value: an empty object can mean yes. Keys are compared as
the most lenient server reads them: `googleSearch` is `google_search`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from agent2rl.core.llm import Wire
from agent2rl.gateway.drivers import WIRE_NAMES
from agent2rl.gateway.errors import RequestRefused

# Allowlists: fields by wire format, fields of tools, and content types


def _split_names(text: str) -> frozenset[str]:
    return frozenset(text.split())


REQUEST_FIELDS: Mapping[Wire, frozenset[str]] = {
    "anthropic": _split_names(
        """
        model messages system max_tokens stream temperature top_p top_k stop_sequences tools tool_choice
        thinking output_config output_format metadata cache_control context_management diagnostics
        service_tier speed inference_geo
        """
    ),
    "openai-chat": _split_names(
        """
        model messages stream stream_options max_tokens max_completion_tokens temperature top_p n stop seed
        frequency_penalty presence_penalty logit_bias logprobs top_logprobs response_format prediction
        modalities tools tool_choice parallel_tool_calls functions function_call reasoning_effort verbosity
        user safety_identifier metadata store service_tier
        prompt_cache_key prompt_cache_retention prompt_cache_options

        thinking thinking_budget enable_thinking reasoning include_reasoning usage chat_template_kwargs
        top_k min_p repetition_penalty length_penalty best_of use_beam_search min_tokens stop_token_ids
        ignore_eos skip_special_tokens spaces_between_special_tokens include_stop_str_in_output
        add_generation_prompt continue_final_message
        guided_json guided_regex guided_choice guided_grammar structured_outputs
        """
    ),
    "openai-responses": _split_names(
        """
        model input instructions stream stream_options max_output_tokens max_tokens max_tool_calls temperature
        top_p top_logprobs tools tool_choice parallel_tool_calls reasoning text truncation include
        context_management user safety_identifier metadata client_metadata store service_tier
        prompt_cache_key prompt_cache_retention prompt_cache_options
        background conversation previous_response_id prompt
        """
    ),
    "gemini": _split_names(
        """
        model contents system_instruction tools tool_config generation_config safety_settings labels store
        service_tier cached_content
        """
    ),
}
"""Top-level request fields. For Chat Completions, the second part is for vLLM and compatible servers."""

NESTED_FIELDS: Mapping[str, frozenset[str]] = {
    "metadata": _split_names("user_id"),
    "generation_config": _split_names(
        """
        temperature top_p top_k candidate_count max_output_tokens stop_sequences seed presence_penalty
        frequency_penalty response_mime_type response_schema response_json_schema response_logprobs logprobs
        response_modalities thinking_config media_resolution
        """
    ),
}
"""Fields of objects that can contain dangerous options: LiteLLM reads the host of its logs from `metadata`,
Vertex AI another model from `generation_config`."""

TOOL_FIELDS: Mapping[Wire, frozenset[str]] = {
    "anthropic": _split_names(
        """
        type name description input_schema input_examples strict cache_control eager_input_streaming
        defer_loading allowed_callers max_characters display_width_px display_height_px display_number
        enable_zoom
        """
    ),
    "openai-chat": _split_names("type function custom name description parameters strict cache_control"),
    "openai-responses": _split_names(
        """
        type name description parameters strict format tools environment execution async defer_loading
        allowed_callers output_schema display_width display_height function
        """
    ),
    "gemini": _split_names("function_declarations computer_use"),
}
"""Fields of a tool. Others are refused, because a proxy may look for a provider's tool in the same object."""

CONTENT_TYPES = _split_names(
    """
    text input_text output_text summary_text reasoning_text refusal message agent_message
    image image_url input_image computer_screenshot input_audio audio_url video_url document file input_file
    search_result
    thinking redacted_thinking reasoning compaction compaction_summary compaction_trigger context_compaction
    configuration_update fallback
    tool_use tool_result server_tool_use tool_search_tool_result tool_search_tool_search_result
    tool_search_tool_result_error tool_reference tool_addition tool_removal
    function_call function_call_output custom_tool_call custom_tool_call_output
    local_shell_call local_shell_call_output shell_call shell_call_output
    apply_patch_call apply_patch_call_output computer_call computer_call_output
    tool_search_call tool_search_output additional_tools
    """
)
"""Allowed `type` of content, in messages, in the Responses format's input and in tool results."""

PART_FIELDS = _split_names(
    """
    text thought thought_signature inline_data function_call function_response video_metadata
    media_resolution part_metadata
    """
)
"""Allowed content in Gemini's format, where a part is identified by its keys."""

MAX_ANSWERS = 8
"""Maximum number of answers to one request: `n`, `candidateCount`."""
REROUTING_FIELDS = {
    "models", "fallbacks", "contextwindowfallbacks", "contentpolicyfallbacks", "route", "apibase", "baseurl",
    "apikey", "extraheaders", "extrabody", "customllmprovider", "litellmparams", "modellist", "userconfig",
    "provider", "preset",
}  # fmt: skip
"""Fields with which proxies let a client choose the model or server."""
STORED_STATE_FIELDS = {
    "background": "Background work cannot be metered.",
    "conversation": "Conversations stored at the provider are not allowed.",
    "previousresponseid": "Responses stored at the provider are not allowed: they may be another run's.",
    "thread": "Conversations stored at the provider are not allowed.",
    "prompt": "Prompts stored at the provider are not allowed: they may use other models and tools.",
    "cachedcontent": "Content stored at the provider is not allowed: it may use other models and tools.",
}
STANDARD_PRICE_VALUES = {
    "servicetier": {"auto", "default", "standard", "standard_only", "flex"},
    "speed": {"standard"},
    "inferencegeo": {"global"},
}
SERVER_TOOL_FIELDS = {
    "mcpservers", "container", "websearchoptions", "searchparameters", "enablesearch", "plugins",
    "datasources",
}  # fmt: skip
CLIENT_TOOLS = {
    "anthropic": re.compile(r"custom|(bash|text_editor|computer|memory|tool_search_tool\w*)_\d{8}"),
    "openai-chat": re.compile(r"function|custom"),
    "openai-responses": re.compile(
        r"function|custom|local_shell|shell|apply_patch|computer\w*|namespace|tool_search"
    ),
}
"""Tools that the client runs itself. The exception is tool search, which only searches the list of tools."""
DATED_TYPE = re.compile(r"\w+_\d{8}")
URL_TYPE = "url"
LINK_KEYS = {
    "url", "uri", "imageurl", "fileurl", "videourl", "audiourl", "documenturl", "filedata", "fileuri",
    "gcsuri", "image", "video", "audio", "document",
}  # fmt: skip
FILE_ID_KEYS = {"fileid", "fileids"}
CONTENT_FIELDS = (
    "messages",
    "input",
    "contents",
    "system",
    "systeminstruction",
    "instructions",
    "prediction",
)
CONTENT_KEYS = {"system", "input", "content", "output"}
"""Keys of values that have a `type`."""
HARMLESS_KEYS = {
    "type", "role", "content", "text", "id", "name", "input", "tool_use_id", "cache_control", "is_error",
    "thinking", "signature", "tool_calls", "tool_call_id", "function", "arguments", "call_id", "output",
    "status", "parts",
}  # fmt: skip
"""Content keys for which no provider fetches anything."""
TOOL_DATA_KEYS = {"args", "response"}
"""Arguments and results of the agent's own tools, which may hold anything."""
CLOSED_TOOLS_HINT = "The provider's own tools are disabled in this run. Use the tools in the sandbox."


@lru_cache(4096)
def _normalize_key(name: str) -> str:
    """Return a key as the most lenient server reads it."""
    return name.replace("_", "").casefold()


def normalize_keys(object_: dict[str, Any]) -> dict[str, Any]:
    """Return an object with normalized keys; refuse it if two of them are equal."""
    normalized = {_normalize_key(name): value for name, value in object_.items()}
    if len(normalized) < len(object_):
        raise RequestRefused(400, "Two keys of one object differ only in spelling.")
    return normalized


def refuse_rerouting(view: dict[str, Any]) -> None:
    if closed := sorted(REROUTING_FIELDS & view.keys()):
        raise RequestRefused(
            403, f"A request may not choose another model or server ({closed[0]}).", "Leave it out."
        )


def refuse_stored_state(wire: Wire, view: dict[str, Any]) -> None:
    for name, why in STORED_STATE_FIELDS.items():
        # Null stores nothing, and `background: false` is what a provider assumes.
        unset = view.get(name) is None or view[name] is False
        if not unset and not (name == "prompt" and wire != "openai-responses"):
            raise RequestRefused(403, f"{why} ({name})", "Leave it out.")


def refuse_unknown_fields(wire: Wire, request: dict[str, Any], besides: set[str]) -> None:
    """Refuse fields that are not on the lists; `besides` are further top-level fields, normalized."""
    allowed = NORMALIZED_REQUEST_FIELDS[wire] | besides
    for name, value in request.items():
        if _normalize_key(name) not in allowed:
            raise _build_unknown_field_error(wire, name)
        if _normalize_key(name) in NORMALIZED_NESTED_FIELDS and isinstance(value, dict):
            for inner in value:
                if _normalize_key(inner) not in NORMALIZED_NESTED_FIELDS[_normalize_key(name)]:
                    raise _build_unknown_field_error(wire, f"{name}.{inner}")


def _build_unknown_field_error(wire: Wire, name: str) -> RequestRefused:
    return RequestRefused(
        400,
        f"Unknown request field {name[:80]!r}: only known fields of {WIRE_NAMES[wire]} are forwarded.",
        "Leave it out.",
    )


def refuse_costly_options(view: dict[str, Any]) -> int:
    """Refuse options with another price; return the number of answers requested."""
    for name, standard in STANDARD_PRICE_VALUES.items():
        value = view.get(name)
        if value is not None and not (isinstance(value, str) and value.casefold() in standard):
            raise RequestRefused(403, f"{name!r} {str(value)[:40]!r} has a different price.", "Leave it out.")
    config = view.get("generationconfig")
    objects = [view, normalize_keys(config)] if isinstance(config, dict) else [view]
    counts = [part[name] for part in objects for name in ("n", "candidatecount", "bestof") if part.get(name)]
    # Not `isinstance`: in Python, True is an integer too.
    if any(type(count) is not int or not 0 < count <= MAX_ANSWERS for count in counts):
        raise RequestRefused(
            403, f"A request may ask for at most {MAX_ANSWERS} answers.", "Send several requests instead."
        )
    return max(counts, default=1)


def refuse_server_tools(wire: Wire, view: dict[str, Any]) -> None:
    if closed := sorted(SERVER_TOOL_FIELDS & view.keys()):
        raise RequestRefused(403, f"The provider may not use {closed[0]!r} for the agent.", CLOSED_TOOLS_HINT)
    _refuse_tools(wire, view.get("tools"))
    for key, part in _iter_content_objects({name: view[name] for name in CONTENT_FIELDS if name in view}):
        simple = part.keys() <= HARMLESS_KEYS  # nearly all of them
        folded = part if simple else normalize_keys(part)
        kind = folded.get("type")
        _refuse_content(wire, _normalize_key(key), folded)
        if simple and not _is_suspicious_type(wire, kind):
            continue
        # A message may define tools, too.
        if "tools" in folded:
            _refuse_tools(wire, folded["tools"])
        if "definition" in folded:
            _refuse_tools(wire, [folded["definition"]])
        if _has_remote_link(wire, folded):
            raise RequestRefused(
                403, "The provider may not fetch anything for the agent.", "Send the content inline."
            )
        if any(folded[name] is not None for name in FILE_ID_KEYS & folded.keys()):
            raise RequestRefused(
                403, "Files stored at the provider are not allowed.", "Send the content inline."
            )
        if _is_suspicious_type(wire, kind):
            _refuse_tools(wire, [part])


def _refuse_content(wire: Wire, key: str, part: dict[str, Any]) -> None:
    """Refuse content of unknown types. `key` is the key of the content in its parent."""
    kind, unknown = part.get("type"), ""
    if wire == "gemini":
        unknown = next(
            (name for name in part if key == "parts" and _normalize_key(name) not in NORMALIZED_PART_FIELDS),
            "",
        )
    elif key in CONTENT_KEYS and kind is not None:
        unknown = "" if isinstance(kind, str) and kind in CONTENT_TYPES else str(kind)
    elif wire == "openai-responses" and key == "input" and not part.keys() & {"role", "content"}:
        # Without a type, it refers to an item that is stored at the provider.
        unknown = "item_reference"
    if unknown:
        why = f"Content of the type {unknown[:60]!r} is not forwarded."
        raise RequestRefused(403, why, "Send text or inline data.")


def _refuse_tools(wire: Wire, tools: Any) -> None:
    if tools is None:
        return
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RequestRefused(400, "'tools' must be a list of objects.")
    for tool in map(normalize_keys, tools):
        foreign = sorted(tool.keys() - NORMALIZED_TOOL_FIELDS[wire])
        if wire != "gemini" and not _runs_in_client(wire, tool):
            foreign = [str(tool.get("type"))]
        if foreign:
            raise RequestRefused(
                403,
                f"The provider may not run the tool {foreign[0][:60]!r} for the agent.",
                CLOSED_TOOLS_HINT,
            )
        if tool.get("type") == "namespace":
            _refuse_tools(wire, tool.get("tools"))


def _runs_in_client(wire: Wire, tool: dict[str, Any]) -> bool:
    kind = tool.get("type")
    if kind is None:
        # A tool without a type is the client's own.
        return wire == "anthropic"
    if not isinstance(kind, str) or not CLIENT_TOOLS[wire].fullmatch(kind):
        return False
    # OpenAI runs shells as well, in containers of its own.
    where = tool.get("environment")
    local = where is None or (isinstance(where, dict) and normalize_keys(where).get("type") == "local")
    return kind != "shell" or local


def _has_remote_link(wire: Wire, part: dict[str, Any]) -> bool:
    if wire == "anthropic" and part.get("type") == URL_TYPE:
        return True
    for name in LINK_KEYS & part.keys():
        value = part[name]
        for link in value if isinstance(value, list) else [value]:
            if isinstance(link, str) and not _is_inline_data(link):
                return True
    return False


def _is_inline_data(link: str) -> bool:
    """Check for a data URL or bare base64; checking for links instead could miss what some server fetches."""
    scheme, colon, rest = link.partition(":")
    return not colon or (scheme.casefold() == "data" and ":" not in rest)


def _is_suspicious_type(wire: Wire, kind: Any) -> bool:
    """Check whether Anthropic might read an object as a link or as a server tool."""
    return (
        wire == "anthropic"
        and isinstance(kind, str)
        and (kind == URL_TYPE or bool(DATED_TYPE.fullmatch(kind)))
    )


def _iter_content_objects(content: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every object in the content with its key, except those in the arguments and results of the
    agent's own tools."""
    pending: list[tuple[str, Any]] = [item for item in content.items() if isinstance(item[1], (dict, list))]
    while pending:
        key, value = pending.pop()
        if isinstance(value, list):
            pending += [(key, inner) for inner in value if isinstance(inner, (dict, list))]
            continue
        yield key, value
        kind = value.get("type")
        skipped = (
            TOOL_DATA_KEYS | {"input"}
            if isinstance(kind, str) and kind.endswith("tool_use")
            else TOOL_DATA_KEYS
        )
        pending += [
            item for item in value.items() if isinstance(item[1], (dict, list)) and item[0] not in skipped
        ]


def _normalize_names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(map(_normalize_key, names))


NORMALIZED_REQUEST_FIELDS = {wire: _normalize_names(names) for wire, names in REQUEST_FIELDS.items()}
NORMALIZED_NESTED_FIELDS = {
    _normalize_key(name): _normalize_names(names) for name, names in NESTED_FIELDS.items()
}
NORMALIZED_TOOL_FIELDS = {wire: _normalize_names(names) for wire, names in TOOL_FIELDS.items()}
NORMALIZED_PART_FIELDS = _normalize_names(PART_FIELDS)
"""The allowlists with normalized names."""
