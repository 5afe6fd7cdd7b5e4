"""The pipeline from raw text to a served model.

ingest >> tokenizer >> tokenize >> publish-dataset >> train >> [evaluate, export] >> register >> deploy
"""

from hera.workflows import Workflow

from pipelines.names import dns_name
from pipelines.settings.load import Loaded, store_uri
from pipelines.settings.recipe import Recipe
from pipelines.settings.site import Site
from pipelines.tasks import RUN_NAME, RUN_STATUS, Pipeline
from steps import deploy, evaluate, export, ingest, notify, publish_dataset, register, tokenize, tokenizer, train


def build(model: Loaded[Recipe], site: Loaded[Site], run_id: str, tree: str = "") -> Workflow:
    """The Workflow of one run: pure, contacts nothing. The same for every engine.

    Args:
        tree: digest of the sources that pods are to run (steps.lib.tree); "": those in their images.
    """
    return pipeline(model, site, run_id, tree).workflow


def pipeline(model: Loaded[Recipe], site: Loaded[Site], run_id: str, tree: str = "") -> Pipeline:
    """As `build`, with the tasks still at hand: the plan walks over them."""
    recipe, name = model.value, dns_name(model.name)
    env = site.value.step_env(store_uri(site.value), recipe.scale.nodes) | ({"TRIPOD_TREE": tree} if tree else {})
    with Pipeline(name=model.name, run_id=run_id, site=site.value, env=env, labels={}) as pipe:
        docs = pipe.task(ingest, **{f: getattr(recipe.data, f) for f in ingest.Params.model_fields})
        words = pipe.task(
            tokenizer, docs=docs.docs, vocab_size=recipe.tokenizer.vocab_size, sample_mib=recipe.tokenizer.sample_mib
        )
        tokens = pipe.task(
            tokenize, fan_out="partition", docs=docs.docs, tokenizer=words.tokenizer, partition=docs.partitions
        )
        data = pipe.task(
            publish_dataset,
            name=dns_name(recipe.data.name or model.name),
            docs=docs.docs,
            tokenizer=words.tokenizer,
            tokens=tokens.tokens,
        )
        trained = pipe.task(train, dataset=data.dataset, model=recipe.model, train=recipe.train)
        quality = pipe.task(
            evaluate,
            checkpoint=trained.checkpoint,
            dataset=data.dataset,
            gate=recipe.evaluate.gate,
            max_tokens=recipe.evaluate.max_tokens,
        )
        exported = pipe.task(export, checkpoint=trained.checkpoint, dataset=data.dataset, name=name)
        registered = pipe.task(
            register,
            name=name,
            model=exported.model,
            checkpoint=trained.checkpoint,
            dataset=data.dataset,
            docs=docs.docs,
            report=quality.report,
            loss=quality.loss,
            bits_per_byte=quality.bits_per_byte,
        )
        serving = recipe.serving
        served = pipe.task(
            deploy,
            model=registered.model,
            name=serving.name or model.name,
            keep=serving.keep,
            port=serving.port,
            gpus=serving.gpus,
            replicas=serving.replicas,
            max_model_len=serving.max_model_len,
            prompt=serving.prompt,
            max_tokens=serving.max_tokens,
        )
        docs >> words >> tokens >> data >> trained >> [quality, exported] >> registered >> served
        if site.value.run.notify:
            pipe.on_exit(notify, run=RUN_NAME, status=RUN_STATUS, pipeline="train", model=model.name)
    return pipe
