import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Value } from 'typebox/value'
import {
  checkMouseClick,
  checkScreenshot,
  KeyboardKeysBody,
  KeyboardTypeBody,
  MouseButtonBody,
  MouseClickBody,
  MouseDragBody,
  MouseMoveBody,
  MouseScrollBody,
} from './computer.ts'
import { ScreenCreateBody, ScreenId, screenAddress } from './computer-screen.ts'
import { WindowGeometryView, WindowMoveBody, WindowView } from './computer-window.ts'

test('a screenshot shows a screen, a window or a complete rectangle', () => {
  const rectangle = { x: 0, y: 0, width: 10, height: 10 }

  assert.equal(checkScreenshot({}), undefined)
  assert.equal(checkScreenshot({ window_id: '0x1' }), undefined)
  assert.equal(checkScreenshot(rectangle), undefined)
  assert.equal(checkScreenshot({ x: 0, y: 0, width: 10 })?.field, 'height')
  assert.equal(checkScreenshot({ width: 10 })?.field, 'x')
  assert.equal(checkScreenshot({ ...rectangle, window_id: '0x1' })?.field, 'window_id')
})

test('a click has both coordinates or none', () => {
  assert.equal(checkMouseClick({}), undefined)
  assert.equal(checkMouseClick({ x: 0, y: 0 }), undefined)
  assert.equal(checkMouseClick({ x: null, y: null }), undefined)
  assert.equal(checkMouseClick({ x: 0 })?.field, 'y')
  assert.equal(checkMouseClick({ x: null, y: 5 })?.field, 'x')
})

test('an empty body is valid where every field has a default', () => {
  for (const schema of [MouseClickBody, MouseScrollBody, MouseButtonBody, ScreenCreateBody]) {
    assert.ok(Value.Check(schema, {}))
  }
  assert.ok(Value.Check(MouseClickBody, { button: null, count: null, x: null, y: null }))
})

test('values outside the desktop are refused', () => {
  assert.ok(!Value.Check(MouseMoveBody, { x: 1 }))
  assert.ok(!Value.Check(MouseMoveBody, { x: 1.5, y: 0 }))
  assert.ok(!Value.Check(MouseMoveBody, { x: 40_000, y: 0 }))
  assert.ok(!Value.Check(MouseDragBody, { from: { x: 1, y: 1 } }))
  assert.ok(!Value.Check(MouseClickBody, { button: 'fourth' }))
  assert.ok(!Value.Check(MouseScrollBody, { direction: 'left' }))
  assert.ok(!Value.Check(KeyboardKeysBody, { keys: [] }))
  assert.ok(!Value.Check(KeyboardTypeBody, { delay_in_ms: 1 }))
  assert.ok(Value.Check(WindowMoveBody, { x: -20, y: 0 }))
})

test('there are eight screens, each with its display and ports', () => {
  assert.deepEqual(screenAddress('screen-0'), { display: ':0', vnc_port: 5900, novnc_port: 6080 })
  assert.deepEqual(screenAddress('screen-7'), { display: ':7', vnc_port: 5907, novnc_port: 6087 })
  assert.ok(Value.Check(ScreenId, 'screen-7'))
  for (const id of ['screen-8', 'screen-', 'screen-00', 'screen-0\n', '']) {
    assert.equal(screenAddress(id), undefined, id)
    assert.ok(!Value.Check(ScreenId, id), id)
  }
})

test('a window may have no title, and its geometry names the screen by number', () => {
  assert.ok(Value.Check(WindowView, { id: '0x2600003' }))
  assert.ok(Value.Check(WindowGeometryView, { id: '0x1', x: -1, y: 0, width: 1, height: 1, screen: 0 }))
  assert.ok(!Value.Check(WindowGeometryView, { id: '0x1', x: 0, y: 0, width: 1, height: 1, screen: 'screen-0' }))
})
