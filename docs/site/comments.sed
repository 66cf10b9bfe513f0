# Doxygen's input filter (sed -E): the plain comments of include/ in the form that it reads.
1i\
/// @file
/NOLINT|IWYU/b
s!^( *)//( |$)!\1///\2!
s!^( *)///   +!&    !
/^ *\/\/\/ {0,4}[^ ]/s/[<>]/\\&/g
s!([;,])  *// !\1  ///< !
:escape
s!(///< .*[^\\])([<>])!\1\\\2!
t escape
