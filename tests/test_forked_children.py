"""Processes forked from a template inherit the same file descriptors as processes of a new interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from forked_children import ForkedPopen, Template


@pytest.mark.long  # a template takes 3 s to start
def test_child_keeps_a_descriptor_with_the_number_of_the_templates_own(tmp_path: Path) -> None:
    script = str(tmp_path / "say.py")
    Path(script).write_text("import os, select, sys\nselect.epoll()\nos.write(int(sys.argv[1]), b'yes')")
    template = Template()
    try:
        ForkedPopen([sys.executable, script, "1"], template=template, stdout=subprocess.DEVNULL).wait()
        number = int(template.process.args[-1])  # type: ignore[arg-type, index]
        read, write = os.pipe()
        if write != number:
            os.dup2(write, number)
            os.close(write)
        command = [sys.executable, script, str(number)]
        child = ForkedPopen(command, template=template, pass_fds=[number])
        os.close(number)
        with os.fdopen(read) as f:
            assert f.read() == "yes"
        assert child.wait() == 0
    finally:
        template.close()
