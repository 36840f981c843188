"""Runs programs that a model wrote against tests that it cannot reach.

A verdict that is made where the program runs can be forged by the program, and the agent trains the model
that writes it. So the program alone runs in a sandbox, and its tests run outside, against a proxy of its
function:

    evaluator   asks the model, takes programs out of its answers (`extraction`), scores
    pool        hands programs out to workers, in parallel; a worker that dies costs nobody else a verdict
    tester      trusted, a process for each worker: runs the tests, and calls the proxy
    ─────────   a unix socket; plain data alone crosses (`plain_data`)
    server      in the sandbox: forks a child for each program, and that child shuts itself in (`jail`)

`server`, `jail` and `plain_data` are all that the sandbox sees, and need nothing but the standard library.
"""
