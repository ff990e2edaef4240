"""Stands for `vllm serve`: a process that speaks the same API, wants a key, and takes time to load.

python served_judge.py --host H --port P --served-model-name NAME
    --asked FILE    a line "process completion" for each request that comes
    --load S        seconds until it listens
    --delay S       seconds until it answers
    --fail TEXT     print this and end with status 1 in place of serving

The verdict on the completion "c12" is the bits of 12, on another text those of its checksum; the
completion "poison" ends the process.
"""

import argparse
import json
import os
import re
import sys
import threading
import time
import zlib

from judge_server import Answer, Asked, JudgeServer, _Handler, numbered_verdict

KEY = os.environ.get("VLLM_API_KEY", "")


class Handler(_Handler):
    """Wants the key for everything but /health, as vLLM does."""

    model = ""

    def do_GET(self) -> None:
        if self.path == "/health" or self.has_key():
            self._reply(Answer(), json.dumps({"data": [{"id": self.model}]}).encode())

    def do_POST(self) -> None:
        if self.has_key():
            super().do_POST()

    def has_key(self) -> bool:
        if KEY and self.headers["Authorization"] == f"Bearer {KEY}":
            return True
        self._reply(Answer(status=401), b'{"error": "Unauthorized"}')
        self.close_connection = True
        return False


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("--revision")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--asked", default=os.devnull)
    parser.add_argument("--load", type=float, default=0.0)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--fail")
    options = parser.parse_args()
    if options.fail:
        print(options.fail)
        sys.exit(1)
    time.sleep(options.load)
    Handler.model = options.served_model_name

    def say(asked: Asked) -> str:
        completion = asked.data["completion"]
        if not re.fullmatch(r"c\d+|poison", completion):
            completion = f"c{zlib.crc32(completion.encode())}"
        with open(options.asked, "a", encoding="utf-8") as stream:
            stream.write(f"{os.getpid()} {completion}\n")
        if completion == "poison":
            os._exit(3)
        time.sleep(options.delay)
        fields = asked.body["response_format"]["json_schema"]["schema"]["required"]
        return json.dumps(numbered_verdict(int(completion[1:]), fields))

    server = JudgeServer(options.port, Handler)
    server.say = say
    print("listening", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
