"""A fake driver LLM that plays a script, so that whole agent runs need neither a key nor a network.

    script_file     the script format (steps in a TOML file), and loading scripts
    messages        one request and one reply, independent of the wire format
    wires/          the wire formats, from the provider's side
    script_player   finds the conversation and the step of a request
    step_replies    turns a step into a reply with the agent's own tools
    response        sends a reply over HTTP, with errors, silence and broken streams
    server          serves it on this computer alone
    scripts/        the scripts that ship with the package

It takes the place of a provider behind the gateway: agents use the same gateway as with a real LLM.
"""
