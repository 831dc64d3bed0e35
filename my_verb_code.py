
from torch import nn
from adaptive_smoothing.models import zoo

class Mine(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, images):
        return self.network(images * 0.5 + 0.5)

def load(name):
    return Mine(zoo.load({"mine-g": 'compact-standard', "mine-h": 'compact-robust'}[name]))
