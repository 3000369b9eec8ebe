import assert from 'node:assert/strict'
import { test } from 'node:test'
import { checkAbsolutePath, checkSubPath, normalisePath, normaliseSubPath, PATH_MAX_BYTES } from './paths.ts'

test('ordinary absolute paths pass, dots inside names included', () => {
  for (const path of ['/', '/srv/index.html', '/a/..b/c..', '/a/...', '/a b/é', '/a//b/./c/']) {
    assert.equal(checkAbsolutePath(path), undefined, path)
  }
})

test('a path that is relative, climbs, carries NUL or is too long is refused', () => {
  assert.match(checkAbsolutePath('') ?? '', /absolute/)
  assert.match(checkAbsolutePath('etc/passwd') ?? '', /absolute/)
  assert.match(checkAbsolutePath('/srv/../etc') ?? '', /"\.\."/)
  assert.match(checkAbsolutePath('/..') ?? '', /"\.\."/)
  assert.match(checkAbsolutePath('/a\0b') ?? '', /NUL/)
  assert.equal(checkAbsolutePath(`/${'a'.repeat(PATH_MAX_BYTES - 1)}`), undefined)
  assert.match(checkAbsolutePath(`/${'é'.repeat(2048)}`) ?? '', /4095 bytes/)
})

test('a prefix inside a bucket may begin and end with slashes but not climb', () => {
  assert.equal(checkSubPath('/team/a/'), undefined)
  assert.match(checkSubPath('team/..') ?? '', /"\.\."/)
  assert.equal(normaliseSubPath('//team/a/'), 'team/a')
  assert.equal(normaliseSubPath('/'), '')
})

test('one place has one spelling', () => {
  assert.equal(normalisePath('/mnt//data/./x/'), '/mnt/data/x')
  assert.equal(normalisePath('//.'), '/')
})
