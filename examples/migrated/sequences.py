"""An RNN on sequences of words, with a sequence column and a context column."""

import argparse
import os
import random

import tensorflow as tf

from appliance import estimator

GOOD = ["good", "great", "fine", "lovely"]
BAD = ["bad", "poor", "awful", "dull"]
OTHER = ["the", "film", "was", "a", "plot", "and"]


def make_reviews(count, seed):
    """Return sentences of different lengths, and whether the good words outnumber the bad ones."""
    rng = random.Random(seed)
    sentences, labels = [], []
    while len(sentences) < count:
        words = [rng.choice(GOOD + BAD + OTHER) for _ in range(rng.randint(3, 12))]
        balance = sum(word in GOOD for word in words) - sum(word in BAD for word in words)
        if balance:
            sentences.append(words)
            labels.append(int(balance > 0))
    return sentences, labels


def input_fn(count, seed, training):
    sentences, labels = make_reviews(count, seed)
    text = [" ".join(words) for words in sentences]
    lengths = [[float(len(words))] for words in sentences]

    def split(features, label):
        words = tf.strings.split(features["text"]).to_sparse()
        return {"words": words, "length": features["length"]}, label

    dataset = tf.data.Dataset.from_tensor_slices(({"text": text, "length": lengths}, labels))
    if training:
        dataset = dataset.shuffle(count, seed=1).repeat()
    return dataset.batch(32).map(split)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    words = tf.feature_column.sequence_categorical_column_with_vocabulary_list(
        "words", GOOD + BAD + OTHER, num_oov_buckets=1
    )
    model = estimator.experimental.RNNClassifier(
        sequence_feature_columns=[tf.feature_column.embedding_column(words, dimension=8)],
        context_feature_columns=[tf.feature_column.numeric_column("length")],
        units=[16],
        cell_type="gru",
        optimizer="Adam",
        model_dir=os.path.join(args.folder, "rnn"),
        config=estimator.RunConfig(tf_random_seed=1),
    )
    model.train(lambda: input_fn(1000, 1, True), steps=args.steps)
    metrics = model.evaluate(lambda: input_fn(500, 2, False))
    for key in sorted(metrics):
        print(f"{key}: {metrics[key]}")


if __name__ == "__main__":
    main()
