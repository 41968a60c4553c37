"""Exporters: which evaluations lead to an export, what is kept, and what a restart remembers."""

import functools
import itertools
import os

import numpy as np
import pytest
import tensorflow as tf

from appliance.estimator.export_strategy import ExportStrategy, as_exporters, make_export_strategy
from appliance.estimator.exporters import (
    BestExporter,
    Exporter,
    FinalExporter,
    LatestExporter,
    collect_old_exports,
    export_directories,
    metric_larger,
    metric_smaller,
    validate_exporters,
)


def receiver():
    raise AssertionError("These estimators write no graph.")


class DirectoryWriter:
    """An Estimator as far as exporters know it: each export is an empty folder with the next timestamp."""

    def __init__(self, model_dir):
        self.model_dir = str(model_dir)
        self.calls = []
        self._clock = itertools.count(1_700_000_000)

    def export_saved_model(self, export_dir_base, serving_input_receiver_fn, **options):
        self.calls.append(options)
        path = os.path.join(export_dir_base, str(next(self._clock)))
        os.makedirs(path)
        return path.encode()


def offer(exporter, estimator, loss, *, step=1, final=False, **metrics):
    path = os.path.join(estimator.model_dir, "export", exporter.name)
    result = {"loss": np.float32(loss), "global_step": np.int64(step), **metrics}
    return exporter.export(estimator, path, f"model.ckpt-{step}", result, final)


def write_evaluation(model_dir, step, loss):
    summary = tf.compat.v1.Summary(value=[tf.compat.v1.Summary.Value(tag="loss", simple_value=loss)])
    with (
        tf.Graph().as_default(),
        tf.compat.v1.summary.FileWriter(model_dir / "eval", filename_suffix=f".{step}") as events,
    ):
        events.add_summary(summary, step)


def test_latest_exporter_exports_always_and_keeps_the_newest(tmp_path):
    estimator = DirectoryWriter(tmp_path)
    exporter = LatestExporter("latest", receiver, {"a.txt": "/b.txt"}, as_text=True, exports_to_keep=2)
    paths = [offer(exporter, estimator, loss).decode() for loss in (3, 2, 9)]
    assert export_directories(tmp_path / "export" / "latest") == paths[1:]
    assert estimator.calls[0] == {
        "assets_extra": {"a.txt": "/b.txt"},
        "as_text": True,
        "checkpoint_path": "model.ckpt-1",
    }


def test_final_exporter_exports_only_the_last_checkpoint(tmp_path):
    estimator, exporter = DirectoryWriter(tmp_path), FinalExporter("final", receiver)
    assert offer(exporter, estimator, 1) is None
    assert offer(exporter, estimator, 1, final=True) == f"{tmp_path}/export/final/1700000000".encode()


def test_best_exporter_remembers_the_best_result_over_restarts_without_event_files(tmp_path):
    """Each exporter here is a new one, as after a restart, and there is no event file at all."""
    estimator = DirectoryWriter(tmp_path)
    answers = [
        offer(BestExporter(serving_input_receiver_fn=receiver), estimator, loss) is not None
        for loss in (0.5, 0.6, 0.4, 0.4, 0.45, 0.3)
    ]
    assert answers == [True, False, True, False, False, True]


def test_best_exporter_compares_by_the_metric_it_is_given(tmp_path):
    estimator = DirectoryWriter(tmp_path)
    exporter = BestExporter(serving_input_receiver_fn=receiver, compare_fn=metric_larger("auc"))
    answers = [offer(exporter, estimator, 1, auc=auc) is not None for auc in (0.7, 0.6, 0.8)]
    assert answers == [True, False, True]
    with pytest.raises(ValueError, match=r"Cannot compare evaluations by 'auc'.*'loss'"):
        offer(exporter, estimator, 1)


def test_best_exporter_recovers_the_best_result_of_tf_estimator_from_event_files(tmp_path):
    """A model_dir of tf.estimator has exports and event files, but no best.json."""
    (tmp_path / "export" / "best_exporter" / "1600000000").mkdir(parents=True)
    estimator, exporter = DirectoryWriter(tmp_path), BestExporter(serving_input_receiver_fn=receiver)
    write_evaluation(tmp_path, 10, 0.25)
    write_evaluation(tmp_path, 20, 0.5)
    write_evaluation(tmp_path, 30, 0.375)
    assert offer(exporter, estimator, 0.375, step=30) is None
    # The evaluation being judged is in the event files already; it does not compete with itself.
    write_evaluation(tmp_path, 40, 0.125)
    assert offer(exporter, estimator, 0.125, step=40) is not None


def test_best_exporter_exports_when_it_has_no_export_yet_whatever_the_event_files_say(tmp_path):
    write_evaluation(tmp_path, 10, 0.25)
    exporter = BestExporter(serving_input_receiver_fn=receiver)
    assert offer(exporter, DirectoryWriter(tmp_path), 0.5, step=20) is not None


def test_a_best_result_that_is_not_a_number_is_beaten_by_any_other():
    nan, some = {"loss": float("nan")}, {"loss": 9.0}
    for better in (metric_smaller("loss"), metric_larger("loss")):
        assert better(best_eval_result=nan, current_eval_result=some)
        assert not better(best_eval_result=some, current_eval_result=nan)


def test_garbage_collection_touches_nothing_but_timestamps(tmp_path):
    for name in ("1700000001", "1700000002", "1700000003", "temp-1700000000", "17", "best.json"):
        (tmp_path / name).mkdir()
    collect_old_exports(f"{tmp_path}/".encode(), 2)
    assert sorted(os.listdir(tmp_path)) == ["17", "1700000002", "1700000003", "best.json", "temp-1700000000"]
    collect_old_exports(tmp_path, None)
    assert len(export_directories(tmp_path)) == 2


@pytest.mark.parametrize("kind", [LatestExporter, BestExporter])
def test_a_number_of_exports_that_is_not_positive_is_refused(kind):
    with pytest.raises(ValueError, match=r"exports_to_keep must be positive.*Received: 0"):
        kind("name", receiver, exports_to_keep=0)


def test_compare_fn_must_take_its_two_arguments_by_name():
    def too_few(best_eval_result):
        return True

    def too_many(best_eval_result, current_eval_result, margin):
        return True

    for compare_fn in (None, too_few, too_many):
        with pytest.raises(ValueError, match="compare_fn must"):
            BestExporter(serving_input_receiver_fn=receiver, compare_fn=compare_fn)
    BestExporter(serving_input_receiver_fn=receiver, compare_fn=functools.partial(too_many, margin=1))


def test_exporters_need_unique_names_that_are_strings():
    class Named(Exporter):
        name = "a"

        def export(self, estimator, export_path, checkpoint_path, eval_result, is_the_final_export):
            return None

    assert validate_exporters(None) == ()
    one = Named()
    assert validate_exporters(one) == (one,)
    with pytest.raises(ValueError, match=r"unique names. Received: \['a', 'a'\]"):
        validate_exporters([one, Named()])
    with pytest.raises(TypeError, match="must be an Exporter"):
        validate_exporters([one, "b"])
    with pytest.raises(TypeError, match="must be an Exporter"):
        validate_exporters(7)
    one.name = ""
    with pytest.raises(ValueError, match="not empty"):
        validate_exporters(one)


def test_an_export_strategy_calls_its_function_with_what_it_takes(tmp_path):
    calls = []
    plain = ExportStrategy("plain", lambda estimator, export_dir_base: calls.append(export_dir_base))
    judging = ExportStrategy("judging", lambda estimator, base, eval_result: calls.append(eval_result))
    exporters = as_exporters([plain, judging, FinalExporter("final", receiver)], final_only=True)
    for exporter in exporters[:2]:
        for final in (False, True):
            offer(exporter, DirectoryWriter(tmp_path), 1, final=final)
    assert calls == [
        f"{tmp_path}/export/plain",
        {"loss": 1, "global_step": 1},
        {"loss": 1, "global_step": 1},
    ]


def test_make_export_strategy_exports_the_latest_or_the_best(tmp_path):
    estimator = DirectoryWriter(tmp_path)
    latest = make_export_strategy(receiver, exports_to_keep=1)
    best = make_export_strategy(receiver, name="best", best=True, compare_fn=metric_larger("auc"))
    exporters = as_exporters([latest, best], final_only=False)
    answers = [
        [offer(exporter, estimator, 1, auc=auc) is not None for exporter in exporters] for auc in (0.7, 0.6)
    ]
    assert answers == [[True, True], [True, False]]
    assert len(export_directories(tmp_path / "export" / "Servo")) == 1
    (single,) = as_exporters(latest, final_only=False)
    assert single.name == "Servo"
