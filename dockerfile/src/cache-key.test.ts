import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { keyOfBase, keyOfStep, keysOfSteps } from './cache-key.ts'
import { evaluateStage } from './evaluate.ts'
import { EMPTY_IMAGE } from './image.ts'
import { parseDockerfile } from './parse.ts'
import { openStages } from './stages.ts'
import type { RunStep, WorkdirStep } from './step.ts'

function keysOf(...lines: string[]): string[] {
  const { scope, stages } = openStages(parseDockerfile(['FROM x', ...lines].join('\n')), 'amd64')
  const { steps } = evaluateStage(scope, EMPTY_IMAGE, stages[0]!)
  return keysOfSteps('sha256:base', steps as (RunStep | WorkdirStep)[])
}

/** How many steps have to run after a change from one file to the other. */
function stepsToRun(before: string[], after: string[]): number {
  const known = new Set(keysOf(...before))
  return keysOf(...after).filter((key) => !known.has(key)).length
}

const FIVE = ['RUN a', 'RUN b', 'RUN c', 'RUN d', 'RUN e']

test('changing step 4 of 5 runs exactly two steps again', () => {
  assert.equal(stepsToRun(FIVE, ['RUN a', 'RUN b', 'RUN c', 'RUN D', 'RUN e']), 2)
})

test('a step depends on those before it and not on those after it', () => {
  assert.equal(stepsToRun(FIVE, FIVE), 0)
  assert.equal(stepsToRun(FIVE, ['RUN a', 'RUN c', 'RUN b', 'RUN d', 'RUN e']), 4)
  assert.equal(stepsToRun(FIVE, [...FIVE, 'RUN f']), 1)
  assert.equal(stepsToRun(FIVE, FIVE.slice(0, 2)), 0)
})

for (const change of ['ENV A=1', 'ARG A=1', 'USER app', 'SHELL ["/bin/bash", "-c"]']) {
  test(`${change} changes the steps after it`, () => {
    assert.equal(stepsToRun(FIVE, [...FIVE.slice(0, 3), change, ...FIVE.slice(3)]), 2)
  })
}

test('WORKDIR is a step and changes those after it', () => {
  assert.equal(stepsToRun(FIVE, [...FIVE.slice(0, 3), 'WORKDIR /app', ...FIVE.slice(3)]), 3)
})

test('a heredoc counts with its text', () => {
  const run = (text: string) => ['RUN <<E', '#!/bin/x', text, 'E']

  assert.equal(stepsToRun(run('a'), run('a')), 0)
  assert.equal(stepsToRun(run('a'), run('b')), 1)
})

test('how a file is written does not matter', () => {
  const plain = ['ARG V=1', 'ENV A=$V B=2', 'RUN a b', 'CMD ["x"]']
  const other = ['# comment', 'ARG V="1"', 'ENV B=2', 'ENV A=1', 'EXPOSE 80', 'run \\', '# comment', 'a b', 'LABEL x=y']

  assert.equal(stepsToRun(plain, other), 0)
})

test('an ENV after the last step runs nothing again', () => {
  assert.equal(stepsToRun(FIVE, [...FIVE, 'ENV A=1']), 0)
})

test('the content of the base counts', () => {
  const [step] = evaluateOne()

  assert.notEqual(keyOfStep(keyOfBase('sha256:a'), step), keyOfStep(keyOfBase('sha256:b'), step))
})

function evaluateOne(): [RunStep] {
  const { scope, stages } = openStages(parseDockerfile('FROM x\nRUN a'), 'amd64')
  return evaluateStage(scope, EMPTY_IMAGE, stages[0]!).steps as [RunStep]
}

const words = fc.string({ unit: fc.constantFrom('a', ',', '"', '=', ' ', ']') })
const runSteps = fc.record({
  kind: fc.constant('run' as const),
  line: fc.constant(1),
  text: fc.constant(''),
  argv: fc.array(words),
  env: fc.dictionary(words, words),
  user: fc.constantFrom('', 'a', 'a:b'),
  workdir: words,
  script: fc.option(fc.record({ path: words, content: words }), { nil: undefined }),
})

test('steps have the same key exactly if they run the same', () => {
  fc.assert(
    fc.property(runSteps, runSteps, (a, b) => {
      const same = sortedJson(a) === sortedJson(b)
      assert.equal(keyOfStep('parent', a) === keyOfStep('parent', b), same)
      assert.equal(keyOfStep('parent', a), keyOfStep('parent', { ...a, line: 7, text: 'RUN …' }))
    }),
  )
})

const sortedJson = ({ env, ...step }: RunStep): string => JSON.stringify([step, Object.entries(env).sort()])
