import assert from 'node:assert/strict'
import { test } from 'node:test'
import { checkAbsolutePath, checkSubPath, normalisePath, normaliseSubPath, PATH_MAX_BYTES } from './paths.ts'

test('absolute paths are valid, also with dots inside names', () => {
  for (const path of ['/', '/srv/index.html', '/a/..b/c..', '/a/...', '/a b/é', '/a//b/./c/']) {
    assert.equal(checkAbsolutePath(path), undefined, path)
  }
})

test('a path that is relative, too long or contains .. or NUL is refused', () => {
  assert.match(checkAbsolutePath('') ?? '', /absolute/)
  assert.match(checkAbsolutePath('etc/passwd') ?? '', /absolute/)
  assert.match(checkAbsolutePath('/srv/../etc') ?? '', /"\.\."/)
  assert.match(checkAbsolutePath('/..') ?? '', /"\.\."/)
  assert.match(checkAbsolutePath('/a\0b') ?? '', /NUL/)
  assert.equal(checkAbsolutePath(`/${'a'.repeat(PATH_MAX_BYTES - 1)}`), undefined)
  assert.match(checkAbsolutePath(`/${'é'.repeat(2048)}`) ?? '', /4095 bytes/)
})

test('a prefix inside a bucket can begin and end with slashes but not contain ..', () => {
  assert.equal(checkSubPath('/team/a/'), undefined)
  assert.match(checkSubPath('team/..') ?? '', /"\.\."/)
  assert.equal(normaliseSubPath('//team/a/'), 'team/a')
  assert.equal(normaliseSubPath('/'), '')
})

test('a path has one canonical form', () => {
  assert.equal(normalisePath('/mnt//data/./x/'), '/mnt/data/x')
  assert.equal(normalisePath('//.'), '/')
})
