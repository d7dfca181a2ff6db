"""Modules that differ from those beside them: what public collections and users' scripts have that no other file does."""

from __future__ import annotations

from experiments.suite.case import Case
from experiments.suite.more import algebra
from experiments.suite.more import apprentices
from experiments.suite.more import aqueducts
from experiments.suite.more import arenas
from experiments.suite.more import attention
from experiments.suite.more import belfries
from experiments.suite.more import benches
from experiments.suite.more import bridges
from experiments.suite.more import causeways
from experiments.suite.more import chambers
from experiments.suite.more import cloisters
from experiments.suite.more import contests
from experiments.suite.more import fountains
from experiments.suite.more import functionals
from experiments.suite.more import gables
from experiments.suite.more import galleries
from experiments.suite.more import groves
from experiments.suite.more import handbook
from experiments.suite.more import harbours
from experiments.suite.more import images
from experiments.suite.more import laboratory
from experiments.suite.more import language
from experiments.suite.more import lanterns
from experiments.suite.more import learning
from experiments.suite.more import minarets
from experiments.suite.more import mixers
from experiments.suite.more import numerics
from experiments.suite.more import objectives
from experiments.suite.more import operators
from experiments.suite.more import orchards
from experiments.suite.more import pictures
from experiments.suite.more import piers
from experiments.suite.more import pits
from experiments.suite.more import quarries
from experiments.suite.more import ramparts
from experiments.suite.more import sampling
from experiments.suite.more import science
from experiments.suite.more import scripts
from experiments.suite.more import sequences
from experiments.suite.more import serving
from experiments.suite.more import speech
from experiments.suite.more import studios
from experiments.suite.more import terraces
from experiments.suite.more import transformers
from experiments.suite.more import viaducts
from experiments.suite.more import wharves
from experiments.suite.more import workshop
from experiments.suite.more import worlds

ROOMS = (
    *(attention, language, images, mixers, speech, learning, numerics, scripts),
    *(functionals, serving, sampling, objectives, sequences, transformers, algebra, pictures, science),
    *(operators, laboratory, worlds, workshop, contests, apprentices, galleries, chambers, handbook),
    *(arenas, benches, studios),
    *(harbours, quarries, orchards, piers, pits, groves),
    *(terraces, ramparts),
    *(gables, lanterns),
    *(belfries, bridges, cloisters, wharves),
    *(aqueducts, viaducts, fountains),
    *(causeways, minarets),
)

CASES: dict[str, Case] = {f"more_{name}": case for room in ROOMS for name, case in room.CASES.items()}
