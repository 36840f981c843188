"""Run programs that a model wrote against tests that the programs cannot reach.

A program could forge a verdict that is made in its own process, and the agent trains the model that writes
the program. So only the program runs in a sandbox; its tests run outside, against a proxy of its function:

    evaluator   asks the model, extracts programs from its answers, scores them
    pool        distributes programs to workers in parallel; a dying worker does not affect other verdicts
    tester      trusted, one process per worker: runs the tests, which call the proxy
    ─────────   a Unix socket; only plain data crosses it (`plain_data`)
    server      in the sandbox: forks a child for each program, and the child locks itself in (`jail`)

The sandbox contains only `server`, `jail` and `plain_data`, which need only the standard library.
"""
