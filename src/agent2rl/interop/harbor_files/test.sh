#!/bin/bash
# Grades the submission and writes the reward. No reward is written if the grader fails.
exec python -m agent2rl.interop.harbor_verifier
