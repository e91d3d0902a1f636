//! Reasons why native code leaves a request to Python.

/// Reason why only Python can decode a request, or describe its problems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftToPython {
    /// The description of text that is not JSON has the words of Python's parser.
    NotJson,
    /// The body has a problem or an unusual form, and a field with a captcha or raw JSON.
    FieldOfPython,
    /// Protobuf keeps unknown fields, and fields of another wire type, in Python alone.
    UnusualEncoding,
    /// The path has escapes.
    EscapedPath,
    /// Python shortens a description with many problems or long names.
    LongDescription,
    /// The request breaks a rule that only Python checks.
    NoProblem,
    /// Python reads other forms, and has checked a checked message.
    OtherForm,
}
