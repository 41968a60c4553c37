"""The tasks of a cluster as processes on this machine."""

import contextlib
import json
import os
import socket
import subprocess
import sys

from tests.appliance.tiny_experiment import DEADLINE_SECONDS


def free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("localhost", 0))
        return [each.getsockname()[1] for each in sockets]


class Processes:
    """Tasks, one of each job, that run a module; all are gone when it is left.

    Args:
        folder: where their logs go.
        jobs: those of the cluster; a task outside of it can be started too.
        module: what each runs.
        arguments: that it gets.
    """

    def __init__(self, folder, jobs, module, *arguments):
        self.cluster = {
            job: [f"localhost:{port}"] for job, port in zip(jobs, free_ports(len(jobs)), strict=True)
        }
        self._command = [sys.executable, "-m", module, *(str(argument) for argument in arguments)]
        self._folder = folder
        self.running = {}

    def start(self, *tasks):
        for task in tasks:
            place = {"cluster": self.cluster, "task": {"type": task, "index": 0}}
            with (self._folder / f"{task}.log").open("w") as errors:
                self.running[task] = subprocess.Popen(
                    self._command,
                    env={**os.environ, "TF_CONFIG": json.dumps(place)},
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                )

    def result(self, task):
        """Wait for the end of a task and return what it printed last."""
        output, _ = self.running[task].communicate(timeout=DEADLINE_SECONDS)
        assert self.running[task].returncode == 0, self.log(task)[-3000:]
        return json.loads(output.splitlines()[-1])

    def log(self, task):
        return (self._folder / f"{task}.log").read_text()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for process in self.running.values():
            process.kill()
            process.wait()
            process.stdout.close()
