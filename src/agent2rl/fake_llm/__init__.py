"""A driver LLM that plays a script, so that whole agent runs need neither a key nor a network.

    script    the script: steps in a TOML file
    library   reads scripts
    talk      one request and one answer, whatever the wire format
    wires/    the wire formats, from the provider's side
    manner    how the agent that asks runs a shell command, and how it is ended
    conversation   which conversation a request belongs to, and how far it has heard it
    player    which step it gets
    speech    what the step says to the agent that asks
    app       all that over HTTP, with errors, silence and broken streams
    server    serves it on this computer alone
    scripts/  the scripts that come with the package

It stands where a provider would, behind the gateway: agents meet the same gateway as with a real LLM.
"""
