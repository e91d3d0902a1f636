//! Error responses of the front. Python writes each of them once, before the front starts.

use std::collections::HashMap;

use hosting_core::Refusal;

use crate::ray_id::RayId;

const OK: &str = "OK";

/// Bytes of a whole HTTP response, without the ray ids between its parts.
pub struct AnswerTemplate(Vec<Vec<u8>>);

impl AnswerTemplate {
    pub fn new(parts: Vec<Vec<u8>>) -> AnswerTemplate {
        AnswerTemplate(parts)
    }

    fn write(&self, ray_id: &[u8], out: &mut Vec<u8>) {
        for (number, part) in self.0.iter().enumerate() {
            if number > 0 {
                out.extend_from_slice(ray_id);
            }
            out.extend_from_slice(part);
        }
    }
}

/// The response to each refusal of the engine. The number of a code is its place in [`Answers::codes`].
pub struct Answers {
    /// `OK`, then the codes of the refusals.
    codes: Vec<&'static str>,
    refusals: Vec<AnswerTemplate>,
}

impl Answers {
    /// Returns an error with the code that has no template.
    pub fn new(mut templates: HashMap<String, AnswerTemplate>) -> Result<Answers, &'static str> {
        let take = |code: &&'static str| templates.remove(*code).ok_or(*code);
        let refusals = Refusal::SLUGS.iter().map(take).collect::<Result<_, _>>()?;
        Ok(Answers { codes: [OK].into_iter().chain(Refusal::SLUGS.iter().copied()).collect(), refusals })
    }

    pub fn codes(&self) -> &[&'static str] {
        &self.codes
    }

    pub fn number(&self, result: &Result<(), Refusal>) -> usize {
        let Err(refusal) = result else { return 0 };
        let slug = refusal.slug();
        self.codes.iter().position(|code| *code == slug).expect("each refusal has a code")
    }

    /// Appends the response to a refusal.
    pub fn write(&self, code: usize, ray_id: RayId, out: &mut Vec<u8>) {
        self.refusals[code - 1].write(&ray_id.digits(), out);
    }
}

#[cfg(test)]
mod tests;
