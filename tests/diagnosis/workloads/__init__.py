"""Small trainings of the kinds that people compare, each with the cases that are made of it."""

from collections.abc import Mapping, Sequence

from tests.diagnosis.workloads import (
    actor,
    coder,
    contrast,
    detector,
    diffusion,
    dreamer,
    experts,
    flow,
    forecast,
    frozen,
    gan,
    gpt,
    graph,
<<<<<<< HEAD
    handwriter,
=======
    physicist,
    points,
>>>>>>> kinds1
    policy,
    quantizer,
    radiance,
    recommender,
    recurrent,
    resnet,
    sam,
    scanner,
    speech,
    student,
    tabular,
    tagger,
    translator,
    unet,
    valuer,
    vit,
)
from tests.diagnosis.workloads.base import Case, Workload

__all__ = ["WORKLOADS"]

WORKLOADS: Mapping[str, tuple[Workload, Sequence[Case]]] = {
    "gpt": (gpt.GPT(), gpt.CASES),
    "resnet": (resnet.ResNet(), resnet.CASES),
    "unet": (unet.UNet(), unet.CASES),
    "recurrent": (recurrent.Recurrent(), recurrent.CASES),
    "gan": (gan.GAN(), gan.CASES),
    "actor": (actor.Actor(), actor.CASES),
    "sam": (sam.SAM(), sam.CASES),
    "vit": (vit.ViT(), vit.CASES),
    "frozen": (frozen.Frozen(), frozen.CASES),
    "coder": (coder.Coder(), coder.CASES),
    "contrast": (contrast.Contrast(), contrast.CASES),
    "tagger": (tagger.Tagger(), tagger.CASES),
    "diffusion": (diffusion.Diffusion(), diffusion.CASES),
    "graph": (graph.Graph(), graph.CASES),
    "recommender": (recommender.Recommender(), recommender.CASES),
    "translator": (translator.Translator(), translator.CASES),
    "valuer": (valuer.Valuer(), valuer.CASES),
    "speech": (speech.Speech(), speech.CASES),
    "policy": (policy.Policy(), policy.CASES),
    "experts": (experts.Experts(), experts.CASES),
    "flow": (flow.Flow(), flow.CASES),
    "forecast": (forecast.Forecast(), forecast.CASES),
    "detector": (detector.Detector(), detector.CASES),
    "scanner": (scanner.Scanner(), scanner.CASES),
    "student": (student.Distillation(), student.CASES),
    "dreamer": (dreamer.Dreamer(), dreamer.CASES),
    "radiance": (radiance.Radiance(), radiance.CASES),
<<<<<<< HEAD
    "handwriter": (handwriter.Handwriter(), handwriter.CASES),
    "tabular": (tabular.Tabular(), tabular.CASES),
=======
    "quantizer": (quantizer.Quantizer(), quantizer.CASES),
    "physicist": (physicist.Physicist(), physicist.CASES),
    "points": (points.Points(), points.CASES),
>>>>>>> kinds1
}
