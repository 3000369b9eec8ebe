import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { CheckOutcome } from './check.ts'
import { canStart, renderOutcomes } from './render.ts'

const fine: CheckOutcome = { name: 'kernel', needed: 'required', ok: true, detail: '6.1.0' }
const noted: CheckOutcome = { name: 'kvm', needed: 'recommended', ok: true, detail: 'no', note: 'slower' }
const advised: CheckOutcome = { name: 'skopeo', needed: 'recommended', ok: false, detail: 'not found', fix: 'get it' }
const broken: CheckOutcome = { name: 'node', needed: 'required', ok: false, detail: 'too old', fix: 'npm ci' }

test('each check has one line with its advice, columns are aligned, and the summary is last', () => {
  const text = renderOutcomes([fine, noted, advised], { colour: false })

  assert.equal(
    text,
    `ok       kernel  6.1.0
ok       kvm     no; note: slower
missing  skopeo  not found (recommended); fix: get it

2 of 3 checks ok, 0 required and 1 recommended missing: Warren can start.
`,
  )
})

test('the summary says that a failed required check prevents the start', () => {
  const text = renderOutcomes([broken, advised], { colour: false })

  assert.match(text, /^missing {2}node {4}too old; fix: npm ci$/m)
  assert.match(text, /0 of 2 checks ok, 1 required and 1 recommended missing: Warren cannot start/)
})

test('if all checks pass, the summary has only their number', () => {
  assert.ok(renderOutcomes([fine, noted], { colour: false }).endsWith('\n\n2 of 2 checks ok.\n'))
})

test('colour adds escape sequences and changes nothing else', () => {
  const all = [fine, noted, advised, broken]

  const coloured = renderOutcomes(all, { colour: true })

  assert.ok(coloured.startsWith('\x1b[32mok\x1b[0m       kernel'))
  // biome-ignore lint/suspicious/noControlCharactersInRegex: the test removes escape sequences
  assert.equal(coloured.replace(/\x1b\[\d+m/g, ''), renderOutcomes(all, { colour: false }))
})

test('line breaks and control characters in the output of a tool are removed', () => {
  const text = renderOutcomes([{ ...fine, detail: 'two\nlines \x1b[31mred' }], { colour: false })

  assert.match(text, /^ok {2}kernel {2}two lines \[31mred\n/)
})

test('a stack trace is shortened, and the fix remains readable', () => {
  const detail = `failed to run: error: no toolchain\n${'    at run (shim.js:1:1)\n'.repeat(40)}`
  const text = renderOutcomes([{ ...advised, detail }], { colour: false })

  assert.match(
    text,
    /^missing {2}skopeo {2}failed to run: error: no toolchain at run .{50,90} … \(recommended\); fix: get it\n\n/,
  )
})

test('only a failed required check prevents the start', () => {
  assert.equal(canStart([fine, noted, advised]), true)
  assert.equal(canStart([fine, broken]), false)
})
