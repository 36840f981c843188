"""What a request may hold: fields by wire format, fields of tools, and types of content.

The lists hold what the providers' own client libraries document and the agents really send, less what reaches
beyond the model: search, fetching, remote tools, other servers, state that is kept at the provider. Add a
field here once you know what every server does with it. Spelling does not matter: `maxTokens` is
`max_tokens`.
"""

from collections.abc import Mapping

from agent2rl.core.llm import Wire


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
