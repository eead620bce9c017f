//! What is said in the end.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

/// What limits, as the JSON's `verdict` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cause {
    /// Reading at the source.
    Read,
    /// What is between the two.
    Network,
    /// Writing at the destination.
    Write,
    /// Names and attributes.
    Metadata,
    /// Processors.
    Cpu,
    /// Too little is under way for the time that each step takes.
    Latency,
    /// Nothing: it does what it is asked to.
    None,
    /// Between two, or with too little to go by.
    Undetermined,
}

/// Where in the pipeline that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// Data are read.
    Read,
    /// Data are hashed.
    Hash,
    /// Data are handed to the network.
    Send,
    /// Data travel.
    Network,
    /// Data are written.
    Write,
    /// Data are made stable.
    Flush,
    /// Data are read back and compared.
    Verify,
    /// Names and attributes are read or made.
    Metadata,
    /// Others have to give leases back.
    Waiting,
    /// Nothing is asked for.
    Idle,
}

/// How a stage limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// It moves as much as it can: more under way only waits longer.
    Saturated,
    /// More under way would move more.
    Latency,
    /// Processors are busy.
    Cpu,
    /// Names and attributes take the time, not data.
    Metadata,
}

/// Two that are nearer to each other than this cannot be told apart.
pub const TIE: f64 = 0.10;

/// Below this confidence it is not said.
const CONFIDENCE_MIN: f64 = 0.7;

/// What limits, where, how sure that is, and what it is said from.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// What limits.
    pub verdict: Cause,
    /// Which server, disk, rail or processor; empty: not known.
    pub target: String,
    /// The probability that both are right, as estimated.
    #[serde(serialize_with = "rounded")]
    pub confidence: f64,
    /// What would limit next.
    pub next: String,
    /// How many times as fast it would be then; 1: nothing is known of it.
    #[serde(serialize_with = "rounded")]
    pub gain: f64,
    /// What it is said from, a sentence each.
    pub evidence: Vec<String>,
    /// Where in the pipeline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    /// How.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    /// With [`Cause::Undetermined`]: those between which it could not be told.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<Stage>,
    /// What to do.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub advice: String,
}

fn rounded<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64((number * 1000.0).round() / 1000.0)
}

impl Stage {
    /// What a stage that is saturated is called.
    pub fn cause(self) -> Cause {
        match self {
            Stage::Read => Cause::Read,
            Stage::Hash | Stage::Send | Stage::Verify => Cause::Cpu,
            Stage::Network => Cause::Network,
            Stage::Write | Stage::Flush => Cause::Write,
            Stage::Metadata | Stage::Waiting => Cause::Metadata,
            Stage::Idle => Cause::None,
        }
    }
}

impl Verdict {
    /// That one stage limits, at a target, in a way. It stays undetermined where that is not sure
    /// enough.
    pub fn of((stage, kind): (Stage, Kind), target: impl Into<String>, confidence: f64) -> Verdict {
        let verdict = match kind {
            Kind::Saturated => stage.cause(),
            Kind::Latency => Cause::Latency,
            Kind::Cpu => Cause::Cpu,
            Kind::Metadata => Cause::Metadata,
        };
        let is_sure = confidence >= CONFIDENCE_MIN;
        Verdict {
            verdict: if is_sure { verdict } else { Cause::Undetermined },
            target: target.into(),
            confidence: confidence.clamp(0.0, 1.0),
            next: String::new(),
            gain: 1.0,
            evidence: Vec::new(),
            stage: Some(stage),
            kind: Some(kind),
            candidates: if is_sure { Vec::new() } else { vec![stage] },
            advice: String::new(),
        }
    }

    /// That it is one of these.
    pub fn between(candidates: &[Stage], confidence: f64) -> Verdict {
        Verdict {
            verdict: Cause::Undetermined,
            target: String::new(),
            confidence: confidence.clamp(0.0, 1.0),
            next: String::new(),
            gain: 1.0,
            evidence: Vec::new(),
            stage: None,
            kind: None,
            candidates: candidates.to_vec(),
            advice: String::new(),
        }
    }

    /// That nothing can be said, and why.
    pub fn unknown(why: impl Into<String>) -> Verdict {
        Verdict { evidence: vec![why.into()], ..Verdict::between(&[], 0.0) }
    }

    /// That nothing limits: it does what it is asked to.
    pub fn nothing(confidence: f64) -> Verdict {
        Verdict { verdict: Cause::None, stage: Some(Stage::Idle), ..Verdict::between(&[], confidence) }
    }

    /// With what would limit next, and how many times as fast it would be then.
    pub fn then(mut self, next: impl Into<String>, gain: f64) -> Verdict {
        self.next = next.into();
        self.gain = if gain.is_finite() { gain.max(1.0) } else { 1.0 };
        self
    }

    /// With one sentence more of evidence.
    pub fn because(mut self, sentence: impl Into<String>) -> Verdict {
        self.evidence.push(sentence.into());
        self
    }

    /// With what to do.
    pub fn advising(mut self, advice: impl Into<String>) -> Verdict {
        self.advice = advice.into();
        self
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Read => "read",
            Stage::Hash => "hash",
            Stage::Send => "send",
            Stage::Network => "network",
            Stage::Write => "write",
            Stage::Flush => "flush",
            Stage::Verify => "verify",
            Stage::Metadata => "metadata",
            Stage::Waiting => "waiting",
            Stage::Idle => "idle",
        })
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::Read => "reading at the source",
            Cause::Network => "the network",
            Cause::Write => "writing at the destination",
            Cause::Metadata => "names and attributes",
            Cause::Cpu => "processors",
            Cause::Latency => "latency: too little is under way",
            Cause::None => "nothing",
            Cause::Undetermined => "undetermined",
        })
    }
}

/// For people: the verdict first, then what it is said from.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = self.confidence * 100.0;
        match (self.verdict, &self.candidates[..]) {
            (Cause::Undetermined, []) => writeln!(f, "undetermined")?,
            (Cause::Undetermined, [one]) => writeln!(f, "undetermined: perhaps {one} ({percent:.0} %)")?,
            (Cause::Undetermined, several) => {
                let names: Vec<_> = several.iter().map(ToString::to_string).collect();
                writeln!(f, "undetermined: {}", names.join(" or "))?;
            }
            (Cause::None, _) => writeln!(f, "limited by nothing here ({percent:.0} % sure)")?,
            (cause, _) => writeln!(f, "limited by {cause} ({percent:.0} % sure)")?,
        }
        if !self.target.is_empty() {
            writeln!(f, "  where   {}", self.target)?;
        }
        if !self.next.is_empty() {
            writeln!(f, "  next    {}, at about {:.1} times the rate (an estimate)", self.next, self.gain)?;
        }
        if !self.advice.is_empty() {
            writeln!(f, "  do      {}", self.advice)?;
        }
        for (at, sentence) in self.evidence.iter().enumerate() {
            writeln!(f, "  {}{sentence}", if at == 0 { "since   " } else { "        " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_told_as_json_and_to_people() {
        let verdict = Verdict::of((Stage::Write, Kind::Saturated), "server:7170", 0.9712)
            .then("network", 1.84)
            .because("writing alone moves 20 MB/s")
            .advising("add a server");
        let json = serde_json::to_value(&verdict).unwrap();
        assert_eq!(json["verdict"], "write");
        assert_eq!((&json["confidence"], &json["gain"]), (&0.971.into(), &1.84.into()));
        assert_eq!(json["evidence"], serde_json::json!(["writing alone moves 20 MB/s"]));
        let text = verdict.to_string();
        assert!(
            text.starts_with("limited by writing at the destination (97 % sure)\n  where   server:7170\n"),
            "{text}"
        );
    }

    #[test]
    fn what_is_not_sure_is_not_said() {
        let verdict = Verdict::of((Stage::Read, Kind::Saturated), "a", 0.6);
        assert_eq!((verdict.verdict, &verdict.candidates[..]), (Cause::Undetermined, &[Stage::Read][..]));
        let tie = Verdict::between(&[Stage::Read, Stage::Network], 0.9);
        assert!(tie.to_string().starts_with("undetermined: read or network"), "{tie}");
        assert_eq!(Verdict::of((Stage::Read, Kind::Latency), "a", 0.9).verdict, Cause::Latency);
        assert_eq!(Verdict::nothing(0.9).verdict, Cause::None);
    }
}
