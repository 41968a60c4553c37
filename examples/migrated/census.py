"""Wide & deep on columns like those of the census: files in, SavedModel out, with train_and_evaluate."""

import argparse
import csv
import os
import random

import tensorflow as tf

from appliance import estimator

COLUMNS = ["age", "workclass", "education", "education_num", "occupation", "hours_per_week", "income_bracket"]
DEFAULTS = [[0.0], [""], [""], [0.0], [""], [0.0], [""]]
WORKCLASSES = ["Private", "Self-emp", "Federal-gov", "Local-gov"]
EDUCATIONS = ["HS-grad", "Some-college", "Bachelors", "Masters", "Doctorate"]
OCCUPATIONS = ["Sales", "Tech-support", "Craft-repair", "Exec-managerial", "Prof-specialty"]


def write_files(folder, rows=4000):
    """Write train.csv and eval.csv, made by chance with a rule behind it."""
    rng = random.Random(0)
    for name, count in (("train.csv", rows), ("eval.csv", rows // 4)):
        with open(os.path.join(folder, name), "w", newline="") as file:
            writer = csv.writer(file)
            for _ in range(count):
                education = rng.randrange(len(EDUCATIONS))
                occupation = rng.randrange(len(OCCUPATIONS))
                age, hours = rng.randint(17, 80), rng.randint(10, 60)
                score = education + occupation + (age > 35) + hours / 20 + rng.gauss(0, 1)
                bracket = ">50K" if score > 7 else "<=50K"
                writer.writerow(
                    [age, rng.choice(WORKCLASSES), EDUCATIONS[education], 9 + 2 * education]
                    + [OCCUPATIONS[occupation], hours, bracket]
                )


def input_fn(path, num_epochs, shuffle, batch_size):
    def parse(line):
        features = dict(zip(COLUMNS, tf.io.decode_csv(line, DEFAULTS), strict=True))
        label = tf.equal(features.pop("income_bracket"), ">50K")
        return features, label

    dataset = tf.data.TextLineDataset(path)
    if shuffle:
        dataset = dataset.shuffle(5000, seed=1)
    return dataset.map(parse, num_parallel_calls=2).repeat(num_epochs).batch(batch_size)


def build_columns():
    age = tf.feature_column.numeric_column("age")
    education_num = tf.feature_column.numeric_column("education_num")
    hours = tf.feature_column.numeric_column("hours_per_week")
    education = tf.feature_column.categorical_column_with_vocabulary_list("education", EDUCATIONS)
    workclass = tf.feature_column.categorical_column_with_vocabulary_list("workclass", WORKCLASSES)
    occupation = tf.feature_column.categorical_column_with_hash_bucket("occupation", hash_bucket_size=100)
    age_buckets = tf.feature_column.bucketized_column(
        age, boundaries=[18, 25, 30, 35, 40, 45, 50, 55, 60, 65]
    )
    wide = [
        education,
        workclass,
        occupation,
        age_buckets,
        tf.feature_column.crossed_column(["education", "occupation"], hash_bucket_size=1000),
        tf.feature_column.crossed_column([age_buckets, "education", "occupation"], hash_bucket_size=1000),
    ]
    deep = [
        age,
        education_num,
        hours,
        tf.feature_column.indicator_column(workclass),
        tf.feature_column.indicator_column(education),
        tf.feature_column.embedding_column(occupation, dimension=8),
    ]
    return wide, deep


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    write_files(args.folder)
    wide, deep = build_columns()
    model = estimator.DNNLinearCombinedClassifier(
        model_dir=os.path.join(args.folder, "model"),
        linear_feature_columns=wide,
        dnn_feature_columns=deep,
        dnn_hidden_units=[64, 32],
        dnn_optimizer="Adam",
        config=estimator.RunConfig(tf_random_seed=1, save_checkpoints_steps=100),
    )
    spec = tf.feature_column.make_parse_example_spec(wide + deep)
    exporter = estimator.BestExporter(
        serving_input_receiver_fn=estimator.export.build_parsing_serving_input_receiver_fn(spec)
    )
    train_spec = estimator.TrainSpec(
        lambda: input_fn(os.path.join(args.folder, "train.csv"), None, True, 40), max_steps=args.steps
    )
    eval_spec = estimator.EvalSpec(
        lambda: input_fn(os.path.join(args.folder, "eval.csv"), 1, False, 40),
        steps=None,
        exporters=[exporter],
        start_delay_secs=0,
        throttle_secs=0,
    )
    metrics, exports = estimator.train_and_evaluate(model, train_spec, eval_spec)
    for key in sorted(metrics):
        print(f"{key}: {metrics[key]}")
    print("exported:", [path for path in exports if path])


if __name__ == "__main__":
    main()
