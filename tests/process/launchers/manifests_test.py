"""The manifests in share/lockstep: manifests_test.py <lockstep> <rendezvous_worker>

Those of Kubernetes are checked against its schemas (kubernetes-validate; without it these cases are skipped). JobSet
and TrainJob are not in these schemas, so their own fields are compared with a list, and what they have of Kubernetes's
with the schemas. Then the containers' commands run as pods would run them: with their variables, names and /etc/hosts.
"""

import pathlib
import re
import secrets
import sys
import tempfile
import unittest

try:
    import yaml
except ImportError:
    yaml = None
try:
    import kubernetes_validate
except ImportError:
    kubernetes_validate = None
from pods import Pods, Unavailable

SKIPPED = 77
LOCKSTEP = ""
WORKER = ""
MANIFESTS = pathlib.Path(__file__).resolve().parents[3] / "share" / "lockstep" / "kubernetes"
JOB_SET = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "spec": {"network", "failurePolicy", "successPolicy", "replicatedJobs", "startupPolicy", "suspend", "managedBy",
             "ttlSecondsAfterFinished", "coordinator"},
    "spec.network": {"enableDNSHostnames", "subdomain", "publishNotReadyAddresses"},
    "spec.failurePolicy": {"maxRestarts", "rules", "restartStrategy"},
}
TRAIN_JOB = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "spec": {"runtimeRef", "initializer", "trainer", "labels", "annotations", "podTemplateOverrides", "suspend",
             "managedBy"},
    "spec.runtimeRef": {"apiGroup", "kind", "name"},
    "spec.trainer": {"image", "command", "args", "env", "numNodes", "numProcPerNode", "resourcesPerNode"},
}


def documents(name):
    with open(MANIFESTS / f"{name}.yaml", encoding="ascii") as file:
        return list(yaml.safe_load_all(file))


def at(document, path):
    for name in filter(None, path.split(".")):
        document = document[name]
    return document


def job_of(set_of_jobs):
    """The JobSet's only job, as a Job."""
    replicated = set_of_jobs["spec"]["replicatedJobs"][0]
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": replicated["name"]},
            "spec": replicated["template"]["spec"]}


class Schemas(unittest.TestCase):
    def setUp(self):
        if kubernetes_validate is None:
            self.skipTest("kubernetes-validate is not installed (pip install kubernetes-validate)")

    def validate(self, document):
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)

    def test_the_indexed_job_and_its_service(self):
        kinds = [document["kind"] for document in documents("job")]
        self.assertEqual(kinds, ["Service", "Job"])
        for document in documents("job"):
            self.validate(document)

    def test_the_job_of_the_job_set(self):
        self.validate(job_of(documents("jobset")[0]))

    def test_the_pod_of_the_train_job(self):
        trainer = documents("trainjob")[0]["spec"]["trainer"]
        container = {"name": "node", **{name: trainer[name] for name in ("image", "command", "args", "env")},
                     "resources": trainer["resourcesPerNode"]}
        self.validate({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "node"},
                       "spec": {"containers": [container]}})

    def test_a_field_that_does_not_exist_is_noticed(self):
        job = documents("job")[1]
        job["spec"]["completion"] = 4
        with self.assertRaises(kubernetes_validate.ValidationError):
            self.validate(job)


class Fields(unittest.TestCase):
    def test_those_of_job_set_and_train_job_exist(self):
        for name, fields in (("jobset", JOB_SET), ("trainjob", TRAIN_JOB)):
            document = documents(name)[0]
            for path, known in fields.items():
                self.assertLessEqual(set(at(document, path)), known, f"{name}: {path}")

    def test_the_service_and_the_pods_belong_together(self):
        service, job = documents("job")
        self.assertEqual(service["spec"]["clusterIP"], "None")
        self.assertEqual(service["spec"]["selector"], {"job-name": job["metadata"]["name"]})
        self.assertEqual(job["spec"]["template"]["spec"]["subdomain"], service["metadata"]["name"])

    def test_pods_have_time_to_save(self):
        for job in (documents("job")[1], job_of(documents("jobset")[0])):
            pod = job["spec"]["template"]["spec"]
            grace = int(re.search(r"--stop-grace (\d+)", pod["containers"][0]["args"][0])[1])
            wait = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][1])
            self.assertGreater(pod["terminationGracePeriodSeconds"], grace + wait + 5)  # the shutdown timeout
            self.assertEqual(pod["restartPolicy"], "Never")  # as a podFailurePolicy needs it

    def test_the_token_is_a_secret_that_only_the_program_reads(self):
        for job in (documents("job")[1], job_of(documents("jobset")[0])):
            pod = job["spec"]["template"]["spec"]
            secret = [volume["name"] for volume in pod["volumes"] if "secret" in volume]
            mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
            self.assertEqual(mounts[secret[0]], "/etc/lockstep")
            self.assertIn("install -m 600 /etc/lockstep/token /tmp/token", pod["containers"][0]["args"][0])
            self.assertLessEqual(set(mounts), {volume["name"] for volume in pod["volumes"]})


class Commands(unittest.TestCase):
    """The containers' commands, as four pods on one machine."""

    def run_pods(self, container, names, service, environments, token):
        changes = {"--nproc-per-node auto": "--nproc-per-node 1", "./train --resume": f"{WORKER} join",
                   "lockstep run": f"{LOCKSTEP} run --no-prefix"}
        with tempfile.TemporaryDirectory() as folder:
            try:
                pods = Pods(pathlib.Path(folder), names, service, token)
            except Unavailable as reason:
                self.skipTest(str(reason))
            self.addCleanup(pods.close)
            logs = [pods.folder / f"log-{name}" for name in names]
            processes = [pods.start(name, container, changes, environment, log)
                         for name, environment, log in zip(names, environments, logs)]
            codes = [process.wait(60) for process in processes]
            everything = "".join(log.read_text() for log in logs)
        self.assertEqual(codes, [0] * len(names), everything)
        ranks = sorted(map(int, re.findall(rf"joined as rank (\d+) of {len(names)}\b", everything)))
        self.assertEqual(ranks, list(range(len(names))), everything)
        return everything

    def test_the_indexed_job(self):
        service, job = documents("job")
        size = job["spec"]["completions"]
        names = [f"{job['metadata']['name']}-{index}" for index in range(size)]
        said = self.run_pods(job["spec"]["template"]["spec"]["containers"][0], names, service["metadata"]["name"],
                             [{"JOB_COMPLETION_INDEX": str(index)} for index in range(size)], secrets.token_hex(32))
        self.assertIn("an indexed Job of Kubernetes (JOB_COMPLETION_INDEX) has started launchers on 4 hosts, which "
                      "meet at train-0.train.default.svc.cluster.local:29500", said)

    def test_the_job_set(self):
        jobs = documents("jobset")[0]
        job = job_of(jobs)
        size = job["spec"]["completions"]
        names = [f"{jobs['metadata']['name']}-{job['metadata']['name']}-0-{index}" for index in range(size)]
        said = self.run_pods(job["spec"]["template"]["spec"]["containers"][0], names, jobs["metadata"]["name"],
                             [{"JOB_COMPLETION_INDEX": str(index)} for index in range(size)], secrets.token_hex(32))
        self.assertIn("which meet at train-hosts-0-0.train.default.svc.cluster.local:29500", said)

    def test_the_train_job(self):
        train = documents("trainjob")[0]
        trainer = train["spec"]["trainer"]
        size = trainer["numNodes"]
        names = [f"{train['metadata']['name']}-node-0-{index}" for index in range(size)]
        token = secrets.token_hex(32)
        said = self.run_pods(trainer, names, "train",
                             [{"JOB_COMPLETION_INDEX": str(index), "PET_NNODES": str(size), "PET_NODE_RANK": str(index),
                               "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": f"{names[0]}.train",
                               "PET_MASTER_PORT": "29500", "TOKEN": token} for index in range(size)], token)
        self.assertIn("4 ranks on 4 hosts: train-node-0-0: rank 0; train-node-0-1: rank 1", said)


if __name__ == "__main__":
    LOCKSTEP, WORKER = sys.argv.pop(1), sys.argv.pop(1)
    if yaml is None:
        print("skipped: PyYAML is not installed (pip install kubernetes-validate)")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
