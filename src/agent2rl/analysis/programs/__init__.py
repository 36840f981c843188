"""What the agent's programs do, read from their text; nothing of it is ever run.

    sources     files as modules: Python, notebooks, configurations
    commands    command lines and shell scripts as launches of programs
    values      what is known of a value: a constant, what it is, where it comes from
    machine     steps through a program with such values: what is not reached counts for nothing
    knowledge   what calls of well-known libraries do to such values
    tools       trainers that are started by a command line and a configuration
    reading     all of it for one attempt: the trainings, in order, and the weights that they leave

A value carries marks: this was sampled from the model, this was computed by judging a sample, this is a
log-probability. A training is recognised where a gradient is taken, by the marks of what it is taken of.
"""
