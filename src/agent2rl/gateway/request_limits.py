"""What a request may hold and what it may not ask of the provider, whichever model it names.

Fields, tools and content types are allowed by name, so a field that a provider adds tomorrow is refused
until somebody has looked at it. Add a field to the lists once you know what every server does with it. The
other checks only give a better reason: rerouting to another model or server, state stored at the provider,
options that cost more, and the provider's own tools, which would be a network connection that the sandbox
forbids. A forbidden field is refused for being there: an empty object can mean yes. Keys are compared as
the most lenient server reads them: `googleSearch` is `google_search`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from agent2rl.core.llm import Wire
from agent2rl.gateway.drivers import WIRE_NAMES
from agent2rl.gateway.errors import RequestRefused

# What a request may hold: fields by wire format, fields of tools, and types of content.


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
"""At the top of a request. Of Chat Completions, the second part is for vLLM and other compatible servers."""

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
"""In fields that servers read more from: LiteLLM takes the host of its logs from `metadata`, Vertex AI
another model from `generation_config`."""

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
"""A proxy may look for a tool of its provider's beside the agent's own, in the same object."""

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
"""`type` of what is said, in messages, in the Responses format's input and in results of tools."""

PART_FIELDS = _split_names(
    """
    text thought thought_signature inline_data function_call function_response video_metadata
    media_resolution part_metadata
    """
)
"""The same in Gemini's form, where a part is known by its keys."""

MAX_ANSWERS = 8
"""To one request, at most: `n`, `candidateCount`."""
REROUTING_FIELDS = {
    "models", "fallbacks", "contextwindowfallbacks", "contentpolicyfallbacks", "route", "apibase", "baseurl",
    "apikey", "extraheaders", "extrabody", "customllmprovider", "litellmparams", "modellist", "userconfig",
    "provider", "preset",
}  # fmt: skip
"""By which proxies let a client choose who answers."""
STORED_STATE_FIELDS = {
    "background": "Work behind the answer cannot be counted.",
    "conversation": "Conversations that are stored at the provider are not the run's.",
    "previousresponseid": "Responses that are stored at the provider may be another run's.",
    "thread": "Conversations that are stored at the provider are not the run's.",
    "prompt": "Prompts that are stored at the provider may bring other models and tools.",
    "cachedcontent": "Contents that are stored at the provider may bring other models and tools.",
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
"""Tools that the client runs itself. The provider searches among tools, which reaches nothing else."""
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
"""Whose values have a type that says what they are."""
HARMLESS_KEYS = {
    "type", "role", "content", "text", "id", "name", "input", "tool_use_id", "cache_control", "is_error",
    "thinking", "signature", "tool_calls", "tool_call_id", "function", "arguments", "call_id", "output",
    "status", "parts",
}  # fmt: skip
"""Keys of what is said that no provider fetches anything for."""
TOOL_DATA_KEYS = {"args", "response"}
"""Arguments and results of the agent's own tools, which may hold anything."""
CLOSED_TOOLS_HINT = "The provider's own tools are closed in this run: use what is in the sandbox."


@lru_cache(4096)
def _normalize_key(name: str) -> str:
    """A key as the most generous server reads it."""
    return name.replace("_", "").casefold()


def normalize_keys(object_: dict[str, Any]) -> dict[str, Any]:
    """An object by its plain keys. No two may be the same."""
    found = {_normalize_key(name): value for name, value in object_.items()}
    if len(found) < len(object_):
        raise RequestRefused(400, "Two keys of one object differ in nothing but their spelling.")
    return found


def refuse_rerouting(view: dict[str, Any]) -> None:
    if closed := sorted(REROUTING_FIELDS & view.keys()):
        raise RequestRefused(403, f"A request may not choose who answers it ({closed[0]}).", "Leave it out.")


def refuse_stored_state(wire: Wire, view: dict[str, Any]) -> None:
    for name, why in STORED_STATE_FIELDS.items():
        unset = view.get(name) is None or view[name] is False
        if not unset and not (name == "prompt" and wire != "openai-responses"):
            raise RequestRefused(403, f"{why} ({name})", "Leave it out.")


def refuse_unknown_fields(wire: Wire, request: dict[str, Any], besides: set[str]) -> None:
    """`besides` are further fields that may be at the top, by their plain names."""
    known = NORMALIZED_REQUEST_FIELDS[wire] | besides
    for name, value in request.items():
        if _normalize_key(name) not in known:
            raise _build_unknown_field_error(wire, name)
        if _normalize_key(name) in NORMALIZED_NESTED_FIELDS and isinstance(value, dict):
            for inner in value:
                if _normalize_key(inner) not in NORMALIZED_NESTED_FIELDS[_normalize_key(name)]:
                    raise _build_unknown_field_error(wire, f"{name}.{inner}")


def _build_unknown_field_error(wire: Wire, name: str) -> RequestRefused:
    return RequestRefused(
        400,
        f"Unknown request field {name[:80]!r}: only known fields of {WIRE_NAMES[wire]} are passed on.",
        "Leave it out.",
    )


def refuse_costly_options(view: dict[str, Any]) -> int:
    """How many answers are asked for."""
    for name, ordinary in STANDARD_PRICE_VALUES.items():
        value = view.get(name)
        if value is not None and not (isinstance(value, str) and value.casefold() in ordinary):
            raise RequestRefused(
                403, f"{name!r} {str(value)[:40]!r} is billed at another price.", "Leave it out."
            )
    config = view.get("generationconfig")
    places = [view, normalize_keys(config)] if isinstance(config, dict) else [view]
    asked = [place[name] for place in places for name in ("n", "candidatecount", "bestof") if place.get(name)]
    if any(type(number) is not int or not 0 < number <= MAX_ANSWERS for number in asked):
        raise RequestRefused(403, f"A request is answered at most {MAX_ANSWERS} times.", "Ask again instead.")
    return max(asked, default=1)


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
        if "tools" in folded:
            _refuse_tools(wire, folded["tools"])
        if "definition" in folded:
            _refuse_tools(wire, [folded["definition"]])
        if _has_remote_link(wire, folded):
            raise RequestRefused(
                403, "The provider may not fetch anything for the agent.", "Send it as data."
            )
        if any(folded[name] is not None for name in FILE_ID_KEYS & folded.keys()):
            raise RequestRefused(
                403, "Files that are stored at the provider are not the run's.", "Send it as data."
            )
        if _is_suspicious_type(wire, kind):
            _refuse_tools(wire, [part])


def _refuse_content(wire: Wire, key: str, part: dict[str, Any]) -> None:
    """What is said must be of a kind that is known. `key` is the one that it was found under."""
    kind, unknown = part.get("type"), ""
    if wire == "gemini":
        unknown = next(
            (name for name in part if key == "parts" and _normalize_key(name) not in NORMALIZED_PART_FIELDS),
            "",
        )
    elif key in CONTENT_KEYS and kind is not None:
        unknown = "" if isinstance(kind, str) and kind in CONTENT_TYPES else str(kind)
    elif wire == "openai-responses" and key == "input" and not part.keys() & {"role", "content"}:
        unknown = "item_reference"
    if unknown:
        why = f"Content of the type {unknown[:60]!r} is not passed on."
        raise RequestRefused(403, why, "Send text, or data in the message itself.")


def _refuse_tools(wire: Wire, tools: Any) -> None:
    if tools is None:
        return
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise RequestRefused(400, "'tools' is a list of objects.")
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
        return wire == "anthropic"
    if not isinstance(kind, str) or not CLIENT_TOOLS[wire].fullmatch(kind):
        return False
    place = tool.get("environment")
    local = place is None or (isinstance(place, dict) and normalize_keys(place).get("type") == "local")
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
    """A data URL, or bare base64. Asked the other way round, some reader finds a link where we see none."""
    scheme, colon, rest = link.partition(":")
    return not colon or (scheme.casefold() == "data" and ":" not in rest)


def _is_suspicious_type(wire: Wire, kind: Any) -> bool:
    """Whether Anthropic might take an object for a link or for a tool of its own."""
    return (
        wire == "anthropic"
        and isinstance(kind, str)
        and (kind == URL_TYPE or bool(DATED_TYPE.fullmatch(kind)))
    )


def _iter_content_objects(said: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object in what was said, with the key that it stands under, but not those in the arguments and
    results of the agent's own tools."""
    left: list[tuple[str, Any]] = [item for item in said.items() if isinstance(item[1], (dict, list))]
    while left:
        key, here = left.pop()
        if isinstance(here, list):
            left += [(key, inner) for inner in here if isinstance(inner, (dict, list))]
            continue
        yield key, here
        kind = here.get("type")
        own = (
            TOOL_DATA_KEYS | {"input"}
            if isinstance(kind, str) and kind.endswith("tool_use")
            else TOOL_DATA_KEYS
        )
        left += [item for item in here.items() if isinstance(item[1], (dict, list)) and item[0] not in own]


def _normalize_names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(map(_normalize_key, names))


NORMALIZED_REQUEST_FIELDS = {wire: _normalize_names(names) for wire, names in REQUEST_FIELDS.items()}
NORMALIZED_NESTED_FIELDS = {
    _normalize_key(name): _normalize_names(names) for name, names in NESTED_FIELDS.items()
}
NORMALIZED_TOOL_FIELDS = {wire: _normalize_names(names) for wire, names in TOOL_FIELDS.items()}
NORMALIZED_PART_FIELDS = _normalize_names(PART_FIELDS)
"""The lists of `allowed_fields` by their plain names."""
