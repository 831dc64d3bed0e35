"""The application as a Hugging Face Space: the environment of a Space chooses the address."""

from adaptive_smoothing.app.server import Server
from adaptive_smoothing.app.subject import Subject
from adaptive_smoothing.mixing.loading import LoadedModel

MODEL = "compact-mixed"


def main() -> None:
    with Server(Subject.of(LoadedModel.load(MODEL, None, None, "cpu")), host=None) as server:
        server.wait()


if __name__ == "__main__":
    main()
