"""Processes that end as a worker of Spark may."""

import os


def exit_code_of(function, *arguments):
    """Call it in a forked process, as Spark's daemon forks its workers; 1 if it raises."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function(*arguments)
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
