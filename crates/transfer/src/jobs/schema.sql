-- Jobs that many agents work on. Who submits may add jobs in his own name and end them; only
-- agents may see and change what is to be done of them.
CREATE SCHEMA IF NOT EXISTS aqueduct;
SET search_path = aqueduct;

CREATE TABLE IF NOT EXISTS agent (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    host text NOT NULL,
    pid integer NOT NULL,
    started timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- Whoever finds that this is over takes its claims away.
    until timestamptz NOT NULL,
    gone boolean NOT NULL DEFAULT false
);

CREATE TABLE IF NOT EXISTS job (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    -- As whom the job is done: who the database says that it is.
    submitter text NOT NULL DEFAULT session_user,
    queue text NOT NULL DEFAULT 'default',
    priority integer NOT NULL DEFAULT 0,
    state text NOT NULL DEFAULT 'new'
        CHECK (state IN ('new', 'running', 'paused', 'cancelling', 'cancelled', 'done')),
    stage integer NOT NULL DEFAULT 0,
    depth integer NOT NULL DEFAULT 0,
    -- Claims of it were taken from an agent: temporary files may be left.
    lost_claims boolean NOT NULL DEFAULT false,
    -- In the names of its temporary files.
    name bigint NOT NULL,
    plan text NOT NULL,
    version integer NOT NULL,
    begun boolean NOT NULL DEFAULT false,
    submitted timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended timestamptz,
    not_deleted text
);

-- What is claimed: a directory, some names of one, a part of a large file.
CREATE TABLE IF NOT EXISTS unit (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job bigint NOT NULL REFERENCES job ON DELETE CASCADE,
    body text NOT NULL,
    agent bigint,
    -- Grows with each claim: what an earlier one says is not heard any more.
    fence integer NOT NULL DEFAULT 0,
    not_before timestamptz NOT NULL DEFAULT '-infinity'
);
CREATE INDEX IF NOT EXISTS unit_free ON unit (job, id) WHERE agent IS NULL;
CREATE INDEX IF NOT EXISTS unit_held ON unit (agent) WHERE agent IS NOT NULL;
CREATE INDEX IF NOT EXISTS unit_job ON unit (job);

-- Directories that were gone through. They get their attributes last.
CREATE TABLE IF NOT EXISTS directory (
    job bigint NOT NULL REFERENCES job ON DELETE CASCADE,
    path bytea NOT NULL,
    base integer NOT NULL,
    depth integer NOT NULL,
    seen text NOT NULL
);
-- An index holds no more than a third of a page: a path may be longer, its hash is not. Earlier
-- releases made primary keys of paths.
ALTER TABLE directory DROP CONSTRAINT IF EXISTS directory_pkey;
CREATE UNIQUE INDEX IF NOT EXISTS directory_path ON directory (job, sha256(path));

-- Names of inodes with several, copied by one agent each inode.
CREATE TABLE IF NOT EXISTS link (
    job bigint NOT NULL REFERENCES job ON DELETE CASCADE,
    identity bytea NOT NULL,
    path bytea NOT NULL,
    base integer NOT NULL
);
ALTER TABLE link DROP CONSTRAINT IF EXISTS link_pkey;
CREATE UNIQUE INDEX IF NOT EXISTS link_path ON link (job, identity, sha256(path));

-- Lines of the manifest.
CREATE TABLE IF NOT EXISTS entry (
    job bigint NOT NULL REFERENCES job ON DELETE CASCADE,
    key bytea NOT NULL,
    grp bytea,
    line text NOT NULL
);
ALTER TABLE entry DROP CONSTRAINT IF EXISTS entry_pkey;
DROP INDEX IF EXISTS entry_group;
CREATE UNIQUE INDEX IF NOT EXISTS entry_key ON entry (job, sha256(key));
CREATE INDEX IF NOT EXISTS entry_names ON entry (job, grp) WHERE grp IS NOT NULL;

-- Large files under way, and their chunks that are stable. The key is the path, or of a long one
-- its hash.
CREATE TABLE IF NOT EXISTS part (
    job bigint NOT NULL REFERENCES job ON DELETE CASCADE,
    key bytea NOT NULL,
    body text NOT NULL,
    missing bigint NOT NULL,
    PRIMARY KEY (job, key)
);
CREATE TABLE IF NOT EXISTS chunk (
    job bigint NOT NULL,
    key bytea NOT NULL,
    place bigint NOT NULL,
    sum bigint NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (job, key, place),
    FOREIGN KEY (job, key) REFERENCES part ON DELETE CASCADE
);

-- The first of what went wrong ('trouble'), and of what the destination cannot hold ('lost').
CREATE TABLE IF NOT EXISTS told (
    job bigint NOT NULL REFERENCES job ON DELETE CASCADE,
    kind text NOT NULL,
    path text NOT NULL,
    what text NOT NULL,
    why text NOT NULL
);
CREATE INDEX IF NOT EXISTS told_job ON told (job, kind);

-- What was copied and removed, for who waits for the job and wants to hear of each path.
CREATE TABLE IF NOT EXISTS said (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job bigint NOT NULL REFERENCES job ON DELETE CASCADE,
    line text NOT NULL
);
CREATE INDEX IF NOT EXISTS said_job ON said (job, id);

-- What each agent did: counts, checks, and nanoseconds in each stage.
CREATE TABLE IF NOT EXISTS tally (
    job bigint NOT NULL REFERENCES job ON DELETE CASCADE,
    agent bigint NOT NULL,
    what text NOT NULL,
    count bigint NOT NULL,
    PRIMARY KEY (job, agent, what)
);

-- Everybody whom the database lets in may submit, in his own name, and see and end his own jobs.
-- All else is for the owner of these tables and the members of that role: the agents.
GRANT USAGE ON SCHEMA aqueduct TO PUBLIC;
GRANT SELECT, INSERT (queue, priority, name, plan, version), UPDATE (state, priority) ON job TO PUBLIC;
GRANT SELECT ON told, tally, entry TO PUBLIC;
GRANT SELECT, DELETE ON said TO PUBLIC;
ALTER TABLE job ENABLE ROW LEVEL SECURITY;
ALTER TABLE told ENABLE ROW LEVEL SECURITY;
ALTER TABLE tally ENABLE ROW LEVEL SECURITY;
ALTER TABLE entry ENABLE ROW LEVEL SECURITY;
ALTER TABLE said ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS own ON job;
CREATE POLICY own ON job USING (submitter = session_user) WITH CHECK (submitter = session_user);
DROP POLICY IF EXISTS own ON told;
CREATE POLICY own ON told FOR SELECT USING (EXISTS (SELECT FROM job WHERE job.id = told.job));
DROP POLICY IF EXISTS own ON tally;
CREATE POLICY own ON tally FOR SELECT USING (EXISTS (SELECT FROM job WHERE job.id = tally.job));
DROP POLICY IF EXISTS own ON entry;
CREATE POLICY own ON entry FOR SELECT USING (EXISTS (SELECT FROM job WHERE job.id = entry.job));
DROP POLICY IF EXISTS own ON said;
CREATE POLICY own ON said USING (EXISTS (SELECT FROM job WHERE job.id = said.job));
