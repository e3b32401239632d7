#![forbid(unsafe_code)]
//! How a conditional write ended, as the machines need to know it.

use crate::env::StoreAnswer;
use crate::error::Error;
use crate::ids::StoreVersion;
use crate::location::{BatchOutcome, StoreError};
use crate::store::records::ROW_CONDITION;

/// How a commit on an authority row ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CommitOutcome {
    /// Written; the row's new version (for a delete, the version of the delete).
    Committed(StoreVersion),
    /// The row is not what it was taken for; nothing was written.
    Conflict,
    /// The condition on the owner failed; nothing was written. For a node's write of its own row:
    /// it was released or its rid was taken, and it never writes as an owner again (R5-16). For
    /// the clearing of a dead creator's row: the creator is not dead.
    Fenced,
    /// Nobody knows whether it was written.
    Unknown,
    /// Nothing was written, for certain.
    Failed(Error),
}

impl CommitOutcome {
    /// The outcome of a batch of [`crate::store::records`] that changes one authority row, from
    /// what the Store answered. An answer of another shape says nothing: [`Self::Unknown`].
    #[must_use]
    pub fn of(answer: &StoreAnswer) -> Self {
        match answer {
            StoreAnswer::Commit(BatchOutcome::Committed(versions)) => {
                versions.first().map_or(Self::Unknown, |version| Self::Committed(*version))
            }
            StoreAnswer::Commit(BatchOutcome::Conflict { condition }) => {
                if *condition == ROW_CONDITION { Self::Conflict } else { Self::Fenced }
            }
            StoreAnswer::Failed(StoreError::Failed(text)) => {
                Self::Failed(Error::unavailable(format!("the Location Store failed: {text}")))
            }
            StoreAnswer::Failed(StoreError::Unknown(_))
            | StoreAnswer::Read(_)
            | StoreAnswer::Scan(_) => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::records::OWNER_CONDITION;

    /// Proves R4-7.
    #[test]
    fn only_certain_answers_are_certain() {
        let of = |a| CommitOutcome::of(&a);
        let committed = |v: &[u64]| {
            let versions = v.iter().map(|v| StoreVersion::new(*v).unwrap()).collect();
            StoreAnswer::Commit(BatchOutcome::Committed(versions))
        };
        let conflict = |condition| StoreAnswer::Commit(BatchOutcome::Conflict { condition });
        assert_eq!(of(committed(&[7])), CommitOutcome::Committed(StoreVersion::new(7).unwrap()));
        assert_eq!(of(committed(&[])), CommitOutcome::Unknown);
        assert_eq!(of(conflict(ROW_CONDITION)), CommitOutcome::Conflict);
        assert_eq!(of(conflict(OWNER_CONDITION)), CommitOutcome::Fenced);
        let failed = StoreAnswer::Failed(StoreError::Failed("full".into()));
        assert!(matches!(of(failed), CommitOutcome::Failed(e) if e.text().contains("full")));
        let unknown = StoreAnswer::Failed(StoreError::Unknown("cut".into()));
        assert_eq!(of(unknown), CommitOutcome::Unknown);
    }
}
