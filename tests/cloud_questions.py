"""Open questions of a cloud product's users, as its assistant answered them: one answer that helps, "
"one that does not"

Each has a figure that a right answer ends on, for those tests that check answers; the others go by thumbs alone.
"""

from __future__ import annotations

from typing import NamedTuple


class CloudQuestion(NamedTuple):
    """What a user asks, an answer that got a thumb up and one that got a thumb down, and the figure in question."""

    question: str
    helpful: str
    useless: str
    figure: str


QUESTIONS = tuple(
    CloudQuestion(*each)
    for each in (
        (
            "Somebody on my team deleted a folder in our storage bucket this morning. Is there any way to get it back?",
            "Yes. With versioning on, open the bucket, show deleted objects and restore the folder. Days they stay: 30",
            "Deleting is final in most systems, so please be careful next time. Days they stay: 0",
            "30",
        ),
        (
            "Our nightly export is slow since we moved regions. What should I look at first?",
            "Compare the region of the bucket with that of the job: traffic between two is capped. Move the "
            "bucket to the "
            "job's region, then raise the part size. Recommended part size in MB: 64",
            "Slow exports can have many reasons. Try again later. Recommended part size in MB: 5",
            "64",
        ),
        (
            "What is the difference between a service account and a user account, and which one should a script use?",
            "A script should use a service account: it has keys of its own that can be rotated and no password "
            "that leaves "
            "with a person. Keys it may have at once: 2",
            "They are both accounts, so use the one you like best. Keys it may have at once: 100",
            "2",
        ),
        (
            "I keep running into a quota when I start virtual machines. How do I find out which one it is?",
            "The error names the quota after the word limit. Open Quotas, filter by the region and sort by "
            "usage; then ask "
            "for more with your reason. Hours until somebody answers: 48",
            "You have too many machines. Delete some of them. Hours until somebody answers: 1",
            "48",
        ),
        (
            "Can you explain how the cost of a managed database is put together? The bill surprised us.",
            "It has four parts: the instance by the hour, storage, backups beyond the free ones and traffic that "
            "leaves the "
            "region. Group the bill by these. Free backups: 7",
            "Databases are expensive, and bills are sent every month. Free backups: 0",
            "7",
        ),
        (
            "How would you set up a staging environment that cannot touch production data?",
            "Use a project of its own with its own network and service accounts, and deny it the production "
            "project by "
            "policy; copy masked data in, never mount the original. Projects you need: 2",
            "Name the machines staging and tell everybody to be careful. Projects you need: 1",
            "2",
        ),
        (
            "Our certificate expires next week. Does it renew by itself, or do I have to do something?",
            "It renews by itself if the domain still points to the load balancer; check that its status is "
            "active. If it is "
            "pending, mend the DNS record first. Days before the end that renewal starts: 15",
            "Certificates are files that expire. Buy a new one. Days before the end that renewal starts: 365",
            "15",
        ),
        (
            "Why do my functions take several seconds on the first request in the morning?",
            "Nothing runs over night, so the first request starts an instance. Keep a minimum of instances warm, "
            "or make the "
            "package smaller. Instances to begin with: 1",
            "Functions are fast. It must be your network. Instances to begin with: 0",
            "1",
        ),
        (
            "We want to be told before we spend more than planned. What are our options?",
            "Create a budget with alerts at several shares of it and send them to a channel that people read; an "
            "alert stops "
            "nothing, so add a cap where you must. Alerts in the default budget: 3",
            "Look at the bill at the end of the month. Alerts in the default budget: 9",
            "3",
        ),
        (
            "Which load balancer fits a chat application with long connections?",
            "One that passes web sockets on and keeps them open: raise its idle timeout above your ping interval "
            "and turn on "
            "session affinity. Default idle timeout in seconds: 60",
            "Any load balancer balances load. Default idle timeout in seconds: 5",
            "60",
        ),
        (
            "How can an auditor read our logs without seeing customers' data?",
            "Give the auditor a view of the log bucket that leaves out the fields with customers' data, and a "
            "role that reads "
            "views alone; note who looked. Days that audit logs are kept: 400",
            "Send the auditor the log files by mail. Days that audit logs are kept: 10",
            "400",
        ),
        (
            "A colleague left the company. What do I have to change so that nothing breaks and nothing stays open?",
            "List what the account owns, hand it to a group, rotate the keys that were shared, and only then "
            "suspend the "
            "account. Days until a suspended account is deleted: 20",
            "Delete the account at once. Days until a suspended account is deleted: 90",
            "20",
        ),
    )
)
